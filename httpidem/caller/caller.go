package caller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/invalid"
)

// Header returns the value of a header. Something in front must set that header for each
// request, and must remove the client's own: a client that chooses its name gets the
// answers of others. A header that has credentials, such as Authorization, is refused.
// An error wraps semel.ErrInvalidRequest.
func Header(name string) (func(*http.Request) (string, error), error) {
	name = textproto.CanonicalMIMEHeaderKey(name)
	wrong := invalid.In("caller: Header: ")
	switch name {
	case "":
		wrong.Add("the name is empty")
	case "Authorization", "Proxy-Authorization", "Cookie":
		wrong.Add("%s has credentials and not the name of a caller: use Basic, JWT or APIKey", name)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	return func(r *http.Request) (string, error) { return single(r.Header, name) }, nil
}

// single returns the value of a header that comes once.
func single(h http.Header, name string) (string, error) {
	switch values := h[name]; {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", &httpidem.Denied{Detail: fmt.Sprintf("The request has no header %s.", name)}
	case len(values) > 1:
		return "", &httpidem.Denied{Detail: fmt.Sprintf("The header %s comes %d times.", name, len(values))}
	default:
		return values[0], nil
	}
}

// Basic returns the user name of HTTP Basic authentication (RFC 7617) if check accepts
// the password. check may be called concurrently. It must take the same time for every
// wrong password. Its error is answered with 503, because nothing is known about the
// caller then. A nil check is an error that wraps semel.ErrInvalidRequest.
func Basic(check func(ctx context.Context, user, password string) (bool, error)) (func(*http.Request) (string, error), error) {
	wrong := invalid.In("caller: Basic: ")
	if check == nil {
		wrong.Add("the function that checks passwords is nil")
		return nil, wrong.Err()
	}
	const challenge = `Basic realm="api", charset="UTF-8"`
	return func(r *http.Request) (string, error) {
		if len(r.Header["Authorization"]) > 1 {
			return "", &httpidem.Denied{Detail: "The header Authorization comes more than once.", Challenge: challenge}
		}
		user, password, ok := r.BasicAuth()
		if !ok || user == "" {
			return "", &httpidem.Denied{Detail: "The request has no user name and password.", Challenge: challenge}
		}
		switch known, err := check(r.Context(), user, password); {
		case err != nil:
			return "", &httpidem.Denied{Status: http.StatusServiceUnavailable, Err: err}
		case !known:
			return "", &httpidem.Denied{Detail: "User name or password are wrong.", Challenge: challenge}
		}
		return user, nil
	}, nil
}

// APIKey returns the name that belongs to the API key in a header. names has the SHA-256
// digests of the keys, as 64 hexadecimal digits, with the name of each. Several keys may
// have one name, so that a caller can change its key. If the header is Authorization,
// the key follows the word Bearer. An error names all wrong entries and wraps
// semel.ErrInvalidRequest.
//
// Keys must be random and long. A digest of a password can be guessed.
func APIKey(header string, names map[string]string) (func(*http.Request) (string, error), error) {
	header = textproto.CanonicalMIMEHeaderKey(header)
	wrong := invalid.In("caller: APIKey: ")
	if header == "" {
		wrong.Add("the name of the header is empty")
	}
	if len(names) == 0 {
		wrong.Add("there are no keys")
	}
	known := make(map[[sha256.Size]byte]string, len(names))
	for _, text := range slices.Sorted(maps.Keys(names)) {
		digest, err := hex.DecodeString(text)
		switch {
		case err != nil || len(digest) != sha256.Size:
			wrong.Add("the digest of %q is not 64 hexadecimal digits: write the output of sha256sum", names[text])
		case names[text] == "":
			wrong.Add("the digest %s has no name", text)
		default:
			known[[sha256.Size]byte(digest)] = names[text]
		}
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	read := func(r *http.Request) (string, error) { return single(r.Header, header) }
	if header == "Authorization" {
		read = bearer
	}
	return func(r *http.Request) (string, error) {
		key, err := read(r)
		if err != nil {
			return "", err
		}
		// The time of this comparison tells about digests, not about keys.
		name, ok := known[sha256.Sum256([]byte(key))]
		if !ok {
			return "", &httpidem.Denied{Detail: "The API key is not known."}
		}
		return name, nil
	}, nil
}

// bearer returns the token of the header Authorization.
func bearer(r *http.Request) (string, error) {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return "", &httpidem.Denied{Detail: "The request needs one header Authorization.", Challenge: "Bearer"}
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if token = strings.Trim(token, " "); !ok || token == "" || !strings.EqualFold(scheme, "Bearer") {
		return "", &httpidem.Denied{Detail: "The header Authorization has no bearer token.", Challenge: "Bearer"}
	}
	return token, nil
}

// MTLS returns the name in the client's certificate: its URIs, else its email addresses,
// else its DNS names, else its subject, with the kind before it, such as
// uri:spiffe://example.org/billing. The server must verify client certificates
// (tls.VerifyClientCertIfGiven or tls.RequireAndVerifyClientCert). A certificate that
// was not verified, or has expired since, is refused with 401.
func MTLS() func(*http.Request) (string, error) {
	return func(r *http.Request) (string, error) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			return "", &httpidem.Denied{Detail: "The connection has no verified client certificate."}
		}
		leaf := r.TLS.VerifiedChains[0][0]
		if time.Now().After(leaf.NotAfter) {
			return "", &httpidem.Denied{Detail: "The client certificate has expired. Connect again."}
		}
		uris := make([]string, len(leaf.URIs))
		for i, uri := range leaf.URIs {
			uris[i] = uri.String()
		}
		for _, kind := range []struct {
			name string
			of   []string
		}{{"uri:", uris}, {"email:", leaf.EmailAddresses}, {"dns:", leaf.DNSNames}} {
			if len(kind.of) > 0 { // sorted, because a renewed certificate may have another order
				return kind.name + strings.Join(slices.Sorted(slices.Values(kind.of)), ","), nil
			}
		}
		if subject := leaf.Subject.String(); subject != "" {
			return "subject:" + subject, nil
		}
		return "", &httpidem.Denied{Detail: "The client certificate has no name."}
	}
}
