package caller

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/invalid"
)

// JWTOptions are the options of JWT. One of Keys and Secret is required.
type JWTOptions struct {
	// Keys is the set of public keys that sign the tokens, as a JWK set (RFC 7517): an
	// address with http or https, or a file. Without https, an attacker in the network
	// can replace the keys and be any caller. The keys are read again every 5 minutes. An
	// unknown key is looked for sooner, but not more often than every 10 s. While the keys
	// cannot be read, the old ones count for 24 h.
	Keys string
	// Secret is the secret that signs the tokens, of at least 32 bytes.
	Secret []byte
	// Algorithms are the signatures that are accepted. Defaults to HS256 with a Secret;
	// with Keys, to RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 and
	// EdDSA.
	Algorithms []string
	// Claim is the claim that names the caller. Its value must be a string, and must stay
	// the same when a token is renewed. Defaults to sub.
	Claim string
	// Issuer is the issuer that a token must have (iss). Defaults to any whose key is in
	// Keys.
	Issuer string
	// Audience is an audience that a token must have (aud). Without it, a token for
	// another service of the same issuer names a caller here. Defaults to any.
	Audience string
	// Client reads Keys at an address. Defaults to a client with a time-out of 5 s.
	Client *http.Client
}

// leeway is how far clocks may differ.
const leeway = time.Minute

// JWT returns a claim of the bearer token (RFC 6750) of a request. The token must be
// signed by one of the keys and must have an expiry (exp). exp, nbf and iat are compared
// with the clock, with a leeway of one minute.
//
// A token that is not valid is answered with 401. If the keys cannot be read, the answer
// is 503. The returned function blocks while it reads keys, at most for the client's
// time-out. JWT itself reads nothing. Its error names all wrong options and wraps
// semel.ErrInvalidRequest.
func JWT(opts *JWTOptions) (func(*http.Request) (string, error), error) {
	var o JWTOptions
	if opts != nil {
		o = *opts
	}
	v := &verifier{claim: o.Claim, expected: jwt.Expected{Issuer: o.Issuer}}
	if v.claim == "" {
		v.claim = "sub"
	}
	if o.Audience != "" {
		v.expected.AnyAudience = jwt.Audience{o.Audience}
	}
	wrong := invalid.In("caller: JWTOptions.")
	possible := asymmetric()
	switch {
	case (o.Keys == "") == (len(o.Secret) == 0):
		wrong.Add("Keys, Secret: give one of them")
	case o.Keys == "":
		possible = []jose.SignatureAlgorithm{jose.HS256, jose.HS384, jose.HS512}
		if len(o.Secret) < 32 {
			wrong.Add("Secret: it has %d bytes, want at least 32", len(o.Secret))
		}
		v.secret = slices.Clone(o.Secret)
	default:
		v.keys = newKeySet(o.Keys, o.Client)
	}
	v.algorithms = possible
	switch {
	case len(o.Algorithms) > 0:
		v.algorithms = nil
	case v.keys == nil:
		v.algorithms = possible[:1]
	}
	for _, name := range o.Algorithms {
		if !slices.Contains(possible, jose.SignatureAlgorithm(name)) {
			wrong.Add("Algorithms: %q is not among %v", name, possible)
		}
		v.algorithms = append(v.algorithms, jose.SignatureAlgorithm(name))
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	return v.caller, nil
}

// asymmetric are the algorithms whose public keys may be in a set. A secret is not among
// them: a public key must never be taken for one.
func asymmetric() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

type verifier struct {
	keys       *keySet // nil with a secret
	secret     []byte
	algorithms []jose.SignatureAlgorithm
	claim      string
	expected   jwt.Expected
}

func (v *verifier) caller(r *http.Request) (string, error) {
	raw, err := bearer(r)
	if err != nil {
		return "", err
	}
	token, err := jwt.ParseSigned(raw, v.algorithms)
	if err != nil {
		return "", invalidToken("The token is malformed, or is signed with an algorithm that is not accepted.", err)
	}
	keys := []any{v.secret}
	if v.keys != nil {
		if keys, err = v.keys.find(r.Context(), token.Headers[0].KeyID, token.Headers[0].Algorithm); err != nil {
			return "", &httpidem.Denied{Status: http.StatusServiceUnavailable, Err: err}
		}
	}
	var standard jwt.Claims
	var all map[string]any
	err = errors.New("no key has the id of the token's key")
	for _, key := range keys {
		standard, all = jwt.Claims{}, nil
		if err = token.Claims(key, &standard, &all); err == nil {
			break
		}
	}
	if err != nil {
		return "", invalidToken("The token's signature is not valid.", err)
	}
	return v.name(&standard, all)
}

// name returns the caller in the claims of a token whose signature is valid.
func (v *verifier) name(standard *jwt.Claims, all map[string]any) (string, error) {
	expected := v.expected
	expected.Time = time.Now()
	switch err := standard.ValidateWithLeeway(expected, leeway); {
	case errors.Is(err, jwt.ErrExpired), standard.Expiry == nil:
		return "", invalidToken("The token has expired.", err)
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return "", invalidToken("The token is not valid yet.", err)
	case err != nil:
		return "", invalidToken("The token is for another service, or of another issuer.", err)
	}
	name, ok := all[v.claim].(string)
	if !ok || name == "" {
		return "", invalidToken(fmt.Sprintf("The token has no text in the claim %s.", v.claim), nil)
	}
	return name, nil
}

func invalidToken(detail string, err error) error {
	return &httpidem.Denied{Detail: detail, Err: err, Challenge: fmt.Sprintf(`Bearer error="invalid_token", error_description="%s"`, strings.TrimSuffix(detail, "."))}
}
