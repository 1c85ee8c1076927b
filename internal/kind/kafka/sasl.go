package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/bearer"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
)

// SASL configures client authentication: by a password, by a token of OAuth, or by AWS
// credentials.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, or "" without a password.
	Mechanism string
	Username  string
	Password  schema.Secret
	OAuth     *OAuth
	AWS       *AWS
}

// OAuth configures where tokens come from. Exactly one of TokenEndpoint, File and Command is
// set.
type OAuth struct {
	TokenEndpoint, ClientID string
	ClientSecret            schema.Secret
	Scope, Audience         string
	File                    string
	Command                 []string
	// Extensions are sent to the brokers with the token.
	Extensions map[string]string

	once   sync.Once
	tokens *bearer.Cache // shared by all clients
}

const tokenMechanism, awsMechanism = "OAUTHBEARER", "AWS_MSK_IAM"

// saslField is the field of source and sink.
func saslField(target **SASL) schema.Field {
	return schema.PartField("sasl", func() schema.Mapping {
		s := &SASL{}
		*target = s
		passwords := []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
		mechanism := schema.ChoiceField("mechanism", &s.Mechanism, "The SASL mechanism of a password.", passwords...)
		mechanism.Read = func(v schema.Value) {
			schema.Quantity(v, &s.Mechanism, "a word", func(text string) (string, error) {
				switch strings.ToUpper(text) {
				case tokenMechanism:
					return "", errors.New("write oauthbearer: { token_endpoint: …, client_id: …, client_secret: … } instead of mechanism")
				case awsMechanism:
					return "", errors.New("write aws_msk_iam: {} instead of mechanism")
				}
				return schema.ParseChoice(text, passwords...)
			})
		}
		return schema.Mapping{
			Fields: []schema.Field{
				mechanism,
				schema.TextField("username", &s.Username, "User name, with `mechanism`."),
				schema.SecretField("password", &s.Password, "Password, with `mechanism`."),
				oauthField(&s.OAuth),
				awsField(&s.AWS),
			},
			OneOf: [][]string{{"mechanism", "oauthbearer", "aws_msk_iam"}},
			Check: func(v schema.Value, there schema.Members) {
				needs(v, there, "mechanism", s.Mechanism != "", []string{"username", "password"}, nil, "oauthbearer", "aws_msk_iam")
			},
		}
	}, "Authentication to the brokers.").Means("off").Titled("SASL")
}

// needs reports fields that belong to another one, and that are missing although it is set, or
// present although one of the others is in its place.
func needs(v schema.Value, there schema.Members, of string, set bool, required, optional []string, others ...string) {
	replaced := slices.ContainsFunc(others, func(name string) bool { _, has := there[name]; return has })
	for _, name := range slices.Concat(required, optional) {
		member, has := there[name]
		switch {
		case has && replaced:
			member.Wrong("it belongs to %s: leave it out", of)
		case !has && set && slices.Contains(required, name):
			v.Wrong("%s is missing", name)
		}
	}
}

// oauthField is the field of tokens.
func oauthField(target **OAuth) schema.Field {
	return schema.PartField("oauthbearer", func() schema.Mapping {
		o := &OAuth{}
		*target = o
		return schema.Mapping{
			Fields: []schema.Field{
				{Name: "token_endpoint", Doc: "Address from which tokens come, for the grant `client_credentials`.", Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) { readEndpoint(v, &o.TokenEndpoint) }},
				schema.TextField("client_id", &o.ClientID, "Name of the client, with `token_endpoint`."),
				schema.SecretField("client_secret", &o.ClientSecret, "Secret of the client, with `token_endpoint`."),
				schema.TextField("scope", &o.Scope, "Scope to ask for, with `token_endpoint`.").Means("that of the client"),
				schema.TextField("audience", &o.Audience, "Audience to ask for, with `token_endpoint`, if the issuer needs it.").Means("that of the client"),
				schema.PathField("file", &o.File, "File with a token that another process renews. It is read for each login."),
				schema.TextsField("command", &o.Command, "Program and arguments that write a token to stdout."),
				{Name: "extensions", Doc: "Names and values that brokers need in addition to the token, such as `logicalCluster` of Confluent Cloud.", Form: schema.Form{Named: &schema.Form{Scalar: schema.ScalarText}}, Read: func(v schema.Value) { readExtensions(v, &o.Extensions) }},
			},
			OneOf: [][]string{{"token_endpoint", "file", "command"}},
			Check: func(v schema.Value, there schema.Members) {
				needs(v, there, "token_endpoint", o.TokenEndpoint != "", []string{"client_id", "client_secret"}, []string{"scope", "audience"}, "file", "command")
			},
		}
	}, "Tokens of OAuth (`OAUTHBEARER`). They are renewed before they end.").Means("off").Titled("OAuth tokens")
}

// readEndpoint reads the address of a token endpoint.
func readEndpoint(v schema.Value, target *string) {
	v.Text(target)
	if *target == "" || strings.Contains(*target, "${") { // a reference that is not resolved yet
		return
	}
	if u, err := url.Parse(*target); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil {
		v.Wrong("not an address of a token endpoint: write https://host/path")
		*target = ""
	}
}

// readExtensions reads names and values of the extensions of RFC 7628.
func readExtensions(v schema.Value, target *map[string]string) {
	entries, _ := v.Entries()
	for _, e := range entries {
		var value string
		v.Value(e.Value, schema.Within(v.Path, e.Name)).Text(&value)
		switch {
		case e.Name == "auth" || strings.Trim(e.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "":
			v.WrongAt(e.At, "%s: a name consists of letters, and is not auth", schema.Within(v.Path, e.Name))
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			v.WrongAt(e.At, "%s: a value is one line of ASCII characters", schema.Within(v.Path, e.Name))
		default:
			if *target == nil {
				*target = map[string]string{}
			}
			(*target)[e.Name] = value
		}
	}
}

// name returns the name of the mechanism.
func (s *SASL) name() string {
	switch {
	case s.OAuth != nil:
		return tokenMechanism
	case s.AWS != nil:
		return awsMechanism
	}
	return s.Mechanism
}

// user returns the name that the brokers know, or "".
func (s *SASL) user() string {
	switch {
	case s == nil:
		return ""
	case s.OAuth != nil:
		return s.OAuth.cache().Last().Subject
	}
	return s.Username
}

// mechanism returns what a client logs in with.
func (s *SASL) mechanism() sasl.Mechanism {
	auth := scram.Auth{User: s.Username, Pass: s.Password.Reveal()}
	switch s.name() {
	case tokenMechanism:
		return tokenLogin{s.OAuth}
	case awsMechanism:
		return s.AWS
	case "SCRAM-SHA-256":
		return auth.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return auth.AsSha512Mechanism()
	}
	return plain.Auth{User: auth.User, Pass: auth.Pass}.AsMechanism()
}

// lint checks whether what a client logs in with can be overheard.
func (s *SASL) lint(l *config.Linter, path string, secured bool) {
	switch {
	case s.OAuth != nil:
		if at, err := url.Parse(s.OAuth.TokenEndpoint); err == nil && at.Scheme == "http" && !isLoopback(at.Hostname()) {
			l.Add(doctor.Warning, config.NoRisk, l.At(path+".sasl.oauthbearer.token_endpoint"), "http", "client_secret and the tokens are sent in clear text", "write https://")
		}
		if !secured {
			l.Add(doctor.Warning, config.NoRisk, l.At(path+".sasl.oauthbearer"), "tokens without tls", "a token is sent in clear text, and a listener can log in with it until it ends", "set tls: {}")
		}
	case secured:
	case s.AWS != nil:
		l.Add(doctor.Broken, config.NoRisk, l.At(path+".sasl.aws_msk_iam"), "AWS credentials without tls", "MSK takes them only at its port for TLS, 9098 or 9198", "set tls: {}")
	case s.Mechanism == "PLAIN":
		l.Add(doctor.Warning, config.NoRisk, l.At(path+".sasl.mechanism"), "PLAIN without tls", "the password is sent in clear text", "set tls: {}, or use SCRAM-SHA-512")
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// cache returns the tokens.
func (o *OAuth) cache() *bearer.Cache {
	o.once.Do(func() {
		var origin bearer.Origin = bearer.File(o.File)
		switch {
		case o.TokenEndpoint != "":
			origin = &bearer.Endpoint{URL: o.TokenEndpoint, ClientID: o.ClientID, ClientSecret: o.ClientSecret.Reveal(), Scope: o.Scope, Audience: o.Audience}
		case len(o.Command) > 0:
			origin = bearer.Command(o.Command)
		}
		o.tokens = bearer.NewCache(origin)
	})
	return o.tokens
}

// tokenLogin logs in with a token. Brokers that limit sessions (KIP-368) end a session with its
// token, and the client logs in again before.
type tokenLogin struct{ *OAuth }

// Name implements sasl.Mechanism.
func (tokenLogin) Name() string { return tokenMechanism }

// Authenticate implements sasl.Mechanism.
func (l tokenLogin) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	token, err := l.cache().Token(ctx)
	if err != nil {
		return nil, nil, loginError{err}
	}
	_, first, err := oauth.Auth{Token: token.Text, Extensions: l.Extensions}.AsMechanism().Authenticate(ctx, host)
	return &tokenSession{from: l.cache(), token: token}, first, err
}

// tokenSession is one login.
type tokenSession struct {
	from    *bearer.Cache
	token   bearer.Token
	refused bool
}

// Challenge implements sasl.Session. A broker that refuses a token says why, and waits for an
// empty message before it says so in the answer that the client reports (RFC 7628, 3.2.3).
func (s *tokenSession) Challenge(answer []byte) (done bool, reply []byte, err error) {
	switch {
	case s.refused:
		return false, nil, kerr.SaslAuthenticationFailed
	case len(answer) > 0:
		s.refused = true
		s.from.Refused(s.token)
		return false, []byte{1}, nil
	}
	s.from.Accepted(s.token)
	return true, nil, nil
}

// loginError says why a client has nothing to log in with. Its class is that of its cause, and
// for the client it is a refusal.
type loginError struct{ error }

// Unwrap returns the cause, and the error of brokers that refuse a client.
func (e loginError) Unwrap() []error { return []error{e.error, kerr.SaslAuthenticationFailed} }

// Temporary makes the client try again.
func (e loginError) Temporary() bool { return errors.Is(e.error, semel.ErrStoreUnavailable) }

// explain gives the cause and the remedy of a failed login: the brokers refused it, or there is no
// token or credential. It returns nil if err is about something else.
func (s *SASL) explain(path string, err error) *diagnose.Error {
	said := &diagnose.Error{Public: true}
	none, missing := errors.AsType[*bearer.Error](err)
	if !missing && s.OAuth != nil && errors.Is(err, context.DeadlineExceeded) && !s.OAuth.cache().Usable() {
		none = s.OAuth.cache().Trouble() // a login waited for a token
		missing = none != nil
	}
	switch {
	case missing:
		said.Cause, said.Remedy = none.Cause, none.Remedy
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		said.Cause, said.Remedy = "the brokers do not support the SASL mechanism "+s.name(), "correct "+path+".sasl"
		if s.Mechanism != "" {
			said.Remedy += ".mechanism"
		}
	case errors.Is(err, kerr.IllegalSaslState):
		said.Cause, said.Remedy = "the listener of the brokers asks for no login", "correct the port in "+path+".brokers, or leave "+path+".sasl out"
	case !errors.Is(err, kerr.SaslAuthenticationFailed):
		return nil
	case s.OAuth != nil:
		said.Cause, said.Remedy = s.OAuth.refused(path+".sasl.oauthbearer", err.Error())
	case s.AWS != nil:
		said.Cause, said.Remedy = s.AWS.refused(path+".sasl.aws_msk_iam", err)
	default:
		said.Cause, said.Remedy = "password refused for user "+s.Username, "correct "+path+".sasl"
	}
	return said
}

// refusalStatus and refusalScope find what a broker says about a token (RFC 7628, 3.2.2).
var (
	refusalStatus = regexp.MustCompile(`"status"\s*:\s*"([a-z_]+)"`)
	refusalScope  = regexp.MustCompile(`"scope"\s*:\s*"([!#-~ ]+)"`)
)

// refused says why brokers do not accept a token. text is the answer of the broker.
func (o *OAuth) refused(path, text string) (cause, remedy string) {
	found := func(pattern *regexp.Regexp) string {
		if parts := pattern.FindStringSubmatch(text); parts != nil {
			return parts[1]
		}
		return ""
	}
	token, now := o.cache().Last(), time.Now()
	status := found(refusalStatus)
	scope := strings.ReplaceAll(strings.Trim(found(refusalScope), "[]"), ",", "") // Kafka writes a list of Java
	cause = "the brokers refuse the token"
	if status != "" {
		cause += " (" + status + ")"
	}
	cause += ": it has " + token.Claims()
	switch {
	case status == "insufficient_scope":
		remedy = "ask for the scope that they require with " + path + ".scope"
		if scope != "" {
			cause, remedy = cause+", and they require scope "+scope, "write "+path+".scope: "+scope+", and allow it for the client"
		}
		if o.TokenEndpoint == "" {
			remedy = "have the issuer put the scope into the token"
		}
	case !token.Ends.IsZero() && !now.Before(token.Ends):
		cause += ", and was " + token.Validity()
		remedy = "is it renewed? See " + o.cache().String()
	case now.Before(token.Begins):
		remedy = "it is accepted from " + token.Begins.UTC().Format(time.RFC3339) + ": compare the clocks of this machine, the issuer and the brokers"
	default:
		remedy = "compare its audience, issuer and subject with those that the brokers expect, and the clocks; do the brokers have the keys of the issuer?"
	}
	return cause, remedy
}

// lacks returns the scope or audience that was asked for and that a token lacks, or "".
func (o *OAuth) lacks(token *bearer.Token) string {
	missing := func(asked, has string) string {
		for _, word := range strings.Fields(asked) {
			if (has != "" || token.Readable) && !strings.HasSuffix(word, "/.default") && !slices.Contains(strings.Fields(has), word) {
				return word
			}
		}
		return ""
	}
	if scope := missing(o.Scope, token.Scope); scope != "" {
		return "scope " + scope
	}
	if audience := missing(o.Audience, token.Audience); audience != "" {
		return "audience " + audience
	}
	return ""
}

// examine reports what a client logs in with. It returns false if there is nothing.
func (s *SASL) examine(ctx context.Context, x *config.Examination) bool {
	switch {
	case s == nil:
	case s.AWS != nil:
		return s.AWS.examine(ctx, x)
	case s.OAuth != nil:
		from := s.OAuth.cache()
		token, err := from.Token(ctx)
		if err != nil {
			cause, remedy := err.Error(), "correct it"
			if none, ok := errors.AsType[*bearer.Error](err); ok {
				cause, remedy = none.Cause, none.Remedy
			}
			x.Note(doctor.Broken, "token", x.File.Redact(cause), "no broker lets the pipeline in", remedy)
			return false
		}
		found := x.File.Redact(token.Validity() + ", " + token.Claims())
		if lacks := s.OAuth.lacks(&token); lacks != "" {
			x.Note(doctor.Warning, "token", found, "it lacks the "+lacks+" that was asked for, and brokers that require it refuse it", "allow it for the client at the issuer")
		} else {
			x.Note(doctor.Fine, "token", fmt.Sprintf("%s, from %s", found, from), "", "")
		}
	}
	return true
}
