package bearer

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Token is a bearer token. Its claims are those of a JWT. They are shown and never trusted: only
// the server checks the signature. A token in another form has no claims.
type Token struct {
	// Text is the token itself, a secret.
	Text string
	// Ends is when it is no longer accepted, or zero if that is unknown.
	Ends time.Time
	// Renew is when a new token should be fetched.
	Renew time.Time
	// Begins is when it is accepted for the first time, or zero.
	Begins time.Time
	// Issuer, Subject, Audience and Scope are claims; "" if the token has none.
	Issuer, Subject, Audience, Scope string
	// Readable means that the token is a JWT, so that a claim without a text is missing.
	Readable bool
}

const (
	// unknownLife is how long a token is used whose end is unknown.
	unknownLife = time.Minute
	// leastMargin is how long before its end a token is renewed at least, unless it lives for less
	// than twice as long. A client logs in again one second before the end of a session.
	leastMargin = 3 * time.Second
	// lastUse is how long before its end a token is used for the last time. A client logs in
	// again one second before the end of a session, and Kafka takes no two logins within a
	// second.
	lastUse = 2 * time.Second
)

// newToken reads a token. lives is how long its origin says that it lasts from at on, or 0. That
// counts more than the claim exp, because the clock of this machine may differ from the issuer's.
func newToken(text string, lives time.Duration, at time.Time) Token {
	t := Token{Text: text}
	t.readClaims()
	if lives > 0 {
		t.Ends = at.Add(lives)
	}
	t.Renew = at.Add(unknownLife)
	if !t.Ends.IsZero() {
		life := t.Ends.Sub(at)
		t.Renew = t.Ends.Add(-max(life/5, min(leastMargin, life/2)))
	}
	return t
}

// readClaims reads the claims, if the token is a JWT.
func (t *Token) readClaims() {
	parts := strings.Split(t.Text, ".")
	if len(parts) != 3 {
		return
	}
	body, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return
	}
	var claims struct {
		Exp, Nbf json.Number
		Iss, Sub texts
		Aud      texts
		Scope    texts
		Scp      texts // Microsoft and Okta
		Roles    texts // Microsoft, for a client without a user
	}
	if json.Unmarshal(body, &claims) != nil {
		return
	}
	t.Readable = true
	seconds := func(n json.Number) time.Time {
		f, err := n.Float64()
		const most = 1 << 40 // a later time means nothing
		if err != nil || f <= 0 || f > most {
			return time.Time{}
		}
		return time.UnixMilli(int64(f * 1000))
	}
	t.Ends, t.Begins = seconds(claims.Exp), seconds(claims.Nbf)
	t.Issuer, t.Subject, t.Audience = strings.Join(claims.Iss, " "), strings.Join(claims.Sub, " "), strings.Join(claims.Aud, " ")
	for _, scope := range []texts{claims.Scope, claims.Scp, claims.Roles} {
		if t.Scope == "" {
			t.Scope = strings.Join(scope, " ")
		}
	}
}

// texts is a text, or a list of them.
type texts []string

// UnmarshalJSON implements json.Unmarshaler. Another value is no text.
func (t *texts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = texts{one}
		return nil
	}
	var list []string
	if json.Unmarshal(data, &list) == nil {
		*t = list
	}
	return nil
}

// accepted reports whether a server may still accept the token.
func (t *Token) accepted(now time.Time) bool {
	return t.Text != "" && (t.Ends.IsZero() || now.Before(t.Ends))
}

// usable reports whether a client should log in with the token.
func (t *Token) usable(now time.Time) bool {
	return t.accepted(now) && (t.Ends.IsZero() || t.Ends.Sub(now) >= lastUse)
}

// check returns an error if no server accepts the token.
func (t *Token) check(from Origin, now time.Time) error {
	switch {
	case t.Text == "":
		return &Error{Cause: from.String() + " gives an empty token", Remedy: "look what it should give", Lasting: true}
	case strings.ContainsFunc(t.Text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return &Error{Cause: from.String() + " gives something that is no token: it has spaces, line breaks or other characters that no token has", Remedy: "look what it gives", Lasting: true}
	case !t.accepted(now):
		return &Error{
			Cause:  from.String() + " gives a token that ended at " + stamp(t.Ends) + ", and it is " + stamp(now),
			Remedy: "compare the clock of this machine with that of the issuer, and look whether the token is renewed", Lasting: true,
		}
	}
	return nil
}

// Claims says what a token has, without showing it: "scope kafka, audience a, issuer i, subject s".
func (t *Token) Claims() string {
	var said []string
	for _, claim := range [][2]string{{"scope", t.Scope}, {"audience", t.Audience}, {"issuer", t.Issuer}, {"subject", t.Subject}} {
		if claim[1] == "" {
			claim[1] = "none"
		}
		said = append(said, claim[0]+" "+claim[1])
	}
	return strings.Join(said, ", ")
}

// Validity says when a token is accepted.
func (t *Token) Validity() string {
	switch {
	case t.Ends.IsZero():
		return "of unknown end"
	case t.Begins.After(time.Now()):
		return "valid from " + stamp(t.Begins) + " until " + stamp(t.Ends)
	}
	return "valid until " + stamp(t.Ends)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
