package provider

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Handshake is a request that is no message, and the answer to it: a sender wants to know
// whether the receiver expects its messages.
//
// A place of a value is query:NAME, header:NAME, form:NAME (a form with this member alone), or
// .NAME (a text in a JSON object).
type Handshake struct {
	// Method is the method of the request. A POST is answered after its signature was
	// checked, unless it is Unsigned. Other methods have none.
	Method   string
	Unsigned bool
	// When has the values by which the request is recognised, by their places. "" is any value.
	When map[string]string
	// Absent is a header that the request does not have.
	Absent string
	// Challenge is the place of a value that the answer repeats. A request without it is no
	// handshake.
	Challenge string
	// Member is the member of a JSON object in the answer that has the challenge. Echo is the
	// header that has it. Without both it is a text.
	Member, Echo string
	// Header is added to the answer.
	Header map[string]string
	// TokenAt is the place of a text that must be Token.
	TokenAt, Token string
	// Allowed are the challenges that are answered. Nil is all.
	Allowed []string
	// Note says for the log what the request means. NoteAt is the place of its subject.
	// Ends says that no more messages come. Without a Note, the log has nothing.
	Note, NoteAt string
	Ends         bool
	// visitAt is the place of an address that is visited, with visit.
	visitAt string
	visit   func(ctx context.Context, address string) error
}

// Handshakes returns the handshakes of senders that a configuration names. The others belong
// to a preset.
func Handshakes() map[string]Handshake {
	return map[string]Handshake{
		"meta": {
			Method: http.MethodGet, When: map[string]string{"query:hub.mode": "subscribe"},
			TokenAt: "query:hub.verify_token", Challenge: "query:hub.challenge",
		},
		"okta":    {Method: http.MethodGet, Challenge: "header:X-Okta-Verification-Challenge", Member: "verification"},
		"dropbox": {Method: http.MethodGet, Challenge: "query:challenge"},
		"cloudevents": {
			Method: http.MethodOptions, Challenge: "header:WebHook-Request-Origin", Echo: "WebHook-Allowed-Origin",
			Header: map[string]string{"WebHook-Allowed-Rate": "*", "Allow": "POST"},
		},
	}
}

// mostChallenge is the longest challenge that is repeated, in bytes.
const mostChallenge = 4096

// Reply is the answer to a handshake.
type Reply struct {
	Status int
	Header map[string]string
	Body   []byte
	// Note is for the log. Ends says that no messages come any more.
	Note string
	Ends bool
}

// Answer returns the answer to a request, or nil if it is not this handshake. A [*Refusal] is
// final; after an [*UnavailableError], the sender must send it again.
func (h *Handshake) Answer(r *http.Request, body []byte) (*Reply, error) {
	if r.Method != h.Method || h.Absent != "" && len(r.Header.Values(h.Absent)) > 0 {
		return nil, nil
	}
	for place, want := range h.When {
		if got, ok := valueAt(r, body, place); !ok || want != "" && got != want {
			return nil, nil
		}
	}
	challenge, ok := "", true
	if h.Challenge != "" {
		challenge, ok = valueAt(r, body, h.Challenge)
	}
	if !ok || len(challenge) > mostChallenge {
		return nil, nil
	}
	if h.TokenAt != "" {
		token, _ := valueAt(r, body, h.TokenAt)
		if h.Token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(h.Token)) == 0 {
			return &Reply{Status: http.StatusForbidden, Body: []byte("the token is not that of this receiver\n")}, nil
		}
	}
	if h.Allowed != nil && !slices.Contains(h.Allowed, challenge) {
		return &Reply{Status: http.StatusForbidden, Body: []byte("this origin is not allowed here\n")}, nil
	}
	if h.visit != nil {
		address, _ := valueAt(r, body, h.visitAt)
		if err := h.visit(r.Context(), address); err != nil {
			return nil, err
		}
	}
	reply := h.reply(challenge)
	if reply.Note, reply.Ends = h.Note, h.Ends; h.NoteAt != "" {
		about, _ := valueAt(r, body, h.NoteAt)
		reply.Note = fmt.Sprintf("%s: %.200s", reply.Note, about)
	}
	return reply, nil
}

func (h *Handshake) reply(challenge string) *Reply {
	reply := &Reply{Status: http.StatusOK, Header: map[string]string{"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}}
	for name, value := range h.Header {
		reply.Header[name] = value
	}
	switch {
	case h.Member != "":
		reply.Header["Content-Type"] = "application/json"
		reply.Body, _ = json.Marshal(map[string]string{h.Member: challenge}) // texts can always be encoded
	case h.Echo != "":
		reply.Header[h.Echo] = challenge
	default:
		reply.Body = []byte(challenge)
	}
	return reply
}

// valueAt returns the value at a place of a request.
func valueAt(r *http.Request, body []byte, place string) (string, bool) {
	kind, name, _ := strings.Cut(place, ":")
	switch kind {
	case "query":
		values := r.URL.Query()[name]
		return first(values)
	case "header":
		return first(r.Header.Values(name))
	case "form":
		media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		form, formErr := url.ParseQuery(string(body))
		if err != nil || formErr != nil || media != "application/x-www-form-urlencoded" || len(form) != 1 {
			return "", false
		}
		return first(form[name])
	}
	members, err := membersOf(body)
	if err != nil {
		return "", false
	}
	return textOf(members[strings.TrimPrefix(place, ".")])
}

// first returns the only value of a list.
func first(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}
