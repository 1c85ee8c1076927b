package provider

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/invalid"
)

// Scheme is how a sender signs its requests with a shared secret (HMAC).
type Scheme struct {
	// Header is the header with the signatures. Separator is between its parts; without
	// one, the header is one part. Parts that begin with Prefix are signatures.
	Header, Separator, Prefix string
	// Algorithm is sha1, sha256 or sha512. Encoding is hex or base64.
	Algorithm, Encoding string
	// Signed is the signed content, with {body}, {time}, {url}, {method}, {form} and
	// {header:NAME}.
	Signed string
	// The time of the request is in TimeHeader, or in the first part of Header, which begins
	// with TimePrefix. Without both, requests have no time. TimeUnit is s, ms, us, ns or rfc3339.
	TimeHeader, TimePrefix, TimeUnit string
	// SecretPrefix is before a secret, and SecretEncoding is its encoding: text, hex or
	// base64.
	SecretPrefix, SecretEncoding string
}

// Algorithms, Encodings, TimeUnits and SecretEncodings return the words of a Scheme.
func Algorithms() []string      { return []string{"sha256", "sha1", "sha512"} }
func Encodings() []string       { return []string{"hex", "base64"} }
func TimeUnits() []string       { return []string{"s", "ms", "us", "ns", "rfc3339"} }
func SecretEncodings() []string { return []string{"text", "hex", "base64"} }

// Timed reports whether requests have a time.
func (s *Scheme) Timed() bool { return s.TimeHeader != "" || s.TimePrefix != "" }

// Secret returns the bytes of a secret as a sender writes it.
func (s *Scheme) Secret(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, s.SecretPrefix)
	if !ok {
		return nil, fmt.Errorf("it does not begin with %s: copy the whole secret", s.SecretPrefix)
	}
	var secret []byte
	var err error
	switch s.SecretEncoding {
	case "hex":
		secret, err = hex.DecodeString(encoded)
	case "base64":
		if secret, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			secret, err = base64.RawStdEncoding.DecodeString(encoded)
		}
	default:
		secret = []byte(encoded)
	}
	if err != nil {
		return nil, fmt.Errorf("it is not %s: copy the whole secret", s.SecretEncoding) // err would show a part of it
	}
	if len(secret) == 0 {
		return nil, errors.New("it is empty: anyone can sign with an empty secret")
	}
	return secret, nil
}

// piece is a part of the signed content: a text, or the name of a value.
type piece struct{ text, value string }

// pieces returns the parts of Signed.
func (s *Scheme) pieces() (list []piece, err error) {
	for rest := s.Signed; rest != ""; {
		text, after, found := strings.Cut(rest, "{")
		if text != "" {
			list = append(list, piece{text: text})
		}
		if !found {
			break
		}
		value, after, closed := strings.Cut(after, "}")
		name, isHeader := strings.CutPrefix(value, "header:")
		known := slices.Contains([]string{"body", "time", "url", "method", "form"}, value) || isHeader && name != ""
		if !closed || !known {
			return nil, errors.New("after { comes body}, time}, url}, method}, form} or header:NAME}")
		}
		list, rest = append(list, piece{value: value}), after
	}
	has := func(value string) bool { return slices.Contains(list, piece{value: value}) }
	open := "" // a value before it that may have any content
	for i, p := range list {
		switch isHeader := strings.HasPrefix(p.value, "header:"); {
		case isHeader && (i == len(list)-1 || list[i+1].text == ""):
			return nil, fmt.Errorf("no text ends {%s}: two requests could have one content", p.value)
		case isHeader && open != "": // no header has a line break
			return nil, fmt.Errorf("no line break is between {%s} and {%s}: two requests could have one content", open, p.value)
		case p.value == "body" || p.value == "form":
			open = p.value
		case strings.Contains(p.text, "\n"):
			open = ""
		}
	}
	switch {
	case !has("body") && !has("form"):
		return nil, errors.New("it has no {body}: the signature would be that of any body")
	case s.Timed() && !has("time"):
		return nil, errors.New("it has no {time}: anyone could set another time")
	case !s.Timed() && has("time"):
		return nil, errors.New("{time} needs time_header or time_prefix: write where the time is")
	}
	return list, nil
}

// endsAddress reports whether the signed content shows where a query begins and ends. No address
// has a space or a line break. A form is joined to it in any case.
func endsAddress(content []piece) bool {
	const never = " \r\n"
	open := false
	for i, p := range content {
		switch p.value {
		case "":
			open = open && !strings.ContainsAny(p.text, never)
		case "body", "form":
			open = true
		case "url":
			after := content[i+1:]
			if len(after) > 0 && after[0].value == "form" {
				after = nil
			}
			isLast := !slices.ContainsFunc(after, func(p piece) bool { return p.value != "" })
			if open || !isLast && !strings.ContainsAny(after[0].text, never) {
				return false
			}
		}
	}
	return true
}

// Check returns the problem with the signed content of a scheme, or nil.
func (s *Scheme) Check() error {
	_, err := s.pieces()
	return err
}

// Refusal is an error that says why a request has no valid signature. It has no part of a
// secret or of a signature.
type Refusal struct {
	Why string
	// Missing says that there is not even an invalid signature: the sender is perhaps a
	// stranger, and the secrets may be right.
	Missing bool
}

// Error implements error.
func (r *Refusal) Error() string { return "signature: " + r.Why }

func refuse(format string, args ...any) error { return &Refusal{Why: fmt.Sprintf(format, args...)} }

// Verifier checks the signatures of a Scheme. It is safe for concurrent use.
type Verifier struct {
	scheme  Scheme
	content []piece
	newHash func() hash.Hash
	encode  func([]byte) string
	opts    VerifierOptions
}

// VerifierOptions are the options of NewVerifier. Secrets is required.
type VerifierOptions struct {
	// Secrets are the secrets, decoded. A signature by any of them is valid.
	Secrets [][]byte
	// Tolerance is how far the time of a request may be from now. Defaults to 5 minutes.
	Tolerance time.Duration
	// URL is the address to which the sender sends. If it has a query, requests must have that
	// query. Defaults to the scheme of the connection, the Host header and the path.
	URL string
}

// DefaultTolerance is how far the time of a request may be from now.
const DefaultTolerance = 5 * time.Minute

// NewVerifier returns a Verifier. One error names all invalid fields, and wraps
// semel.ErrInvalidRequest.
func NewVerifier(s Scheme, opts *VerifierOptions) (*Verifier, error) {
	v := &Verifier{scheme: s}
	if opts != nil {
		v.opts = *opts
	}
	if v.opts.Tolerance == 0 {
		v.opts.Tolerance = DefaultTolerance
	}
	wrong := invalid.In("provider: ")
	var err error
	if v.content, err = s.pieces(); err != nil {
		wrong.Add("Scheme.Signed: %v", err)
	}
	switch s.Algorithm {
	case "sha1":
		v.newHash = sha1.New
	case "sha256":
		v.newHash = sha256.New
	case "sha512":
		v.newHash = sha512.New
	default:
		wrong.Add("Scheme.Algorithm: %q is none of %v", s.Algorithm, Algorithms())
	}
	switch s.Encoding {
	case "hex":
		v.encode = hex.EncodeToString
	case "base64":
		v.encode = base64.StdEncoding.EncodeToString
	default:
		wrong.Add("Scheme.Encoding: %q is none of %v", s.Encoding, Encodings())
	}
	if s.Header == "" {
		wrong.Add("Scheme.Header is missing")
	}
	if s.TimePrefix != "" && (s.Separator == "" || s.TimePrefix == s.Prefix) {
		wrong.Add("Scheme.TimePrefix: needs a Separator, and another text than Prefix")
	}
	if len(v.opts.Secrets) == 0 || slices.ContainsFunc(v.opts.Secrets, func(s []byte) bool { return len(s) == 0 }) {
		wrong.Add("VerifierOptions.Secrets: there is none, or one is empty")
	}
	if v.opts.Tolerance < 0 {
		wrong.Add("VerifierOptions.Tolerance: %v is negative", v.opts.Tolerance)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	return v, nil
}

// Verify returns nil if a request with this body has a valid signature. Other errors than a
// [*Refusal] do not occur.
func (v *Verifier) Verify(r *http.Request, body []byte) error {
	signatures, written, err := v.parts(r)
	if err != nil {
		return err
	}
	contents, err := v.contents(r, body, written)
	if err != nil {
		return err
	}
	valid := 0
	for _, secret := range v.opts.Secrets { // all of them, so that the time does not tell which one is valid
		for _, content := range contents {
			want := []byte(v.mac(secret, content))
			for _, signature := range signatures {
				valid |= subtle.ConstantTimeCompare(want, []byte(signature))
			}
		}
	}
	if valid == 0 {
		return refuse("%s is not that of this body by %s: %s", v.scheme.Header, plural(len(v.opts.Secrets), "the secret", "any of the secrets"), v.mistake(r, signatures))
	}
	return v.late(written)
}

// mistake says what is likely to be wrong if no signature is valid.
func (v *Verifier) mistake(r *http.Request, signatures []string) string {
	last := signatures[len(signatures)-1]
	want := len(v.mac(v.opts.Secrets[0], nil))
	name := strings.IndexAny(last, "=,:") + 1 // signatures have = at the end alone
	switch {
	case v.scheme.Prefix == "" && name > 1 && name < min(20, len(last)-1):
		return fmt.Sprintf("it begins with %s, so set prefix to that", last[:name])
	case len(last) != want:
		return fmt.Sprintf("it has %d characters, and one by %s in %s has %d: correct algorithm, encoding or prefix", len(last), v.scheme.Algorithm, v.scheme.Encoding, want)
	case slices.Contains(v.content, piece{value: "url"}):
		return fmt.Sprintf("check the secret, that nothing changes the body on its way, and that the sender sends to %.200s", v.addresses(r)[0])
	}
	return "check the secret, and that nothing changes the body on its way"
}

// mac returns the signature of a content, as a sender writes it.
func (v *Verifier) mac(secret, content []byte) string {
	mac := hmac.New(v.newHash, secret)
	mac.Write(content)
	return v.encode(mac.Sum(nil))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// parts returns the signatures of a request, without their prefix, and its time as written.
func (v *Verifier) parts(r *http.Request) (signatures []string, written string, err error) {
	s := &v.scheme
	if len(r.Header.Values(s.Header)) == 0 {
		return nil, "", &Refusal{Why: "the request has no header " + s.Header + others(r), Missing: true}
	}
	header, err := only(r, s.Header)
	if err != nil {
		return nil, "", err
	}
	list := []string{header}
	if s.Separator != "" {
		list = strings.Split(header, s.Separator)
	}
	var times []string
	for _, part := range list {
		if text, ok := strings.CutPrefix(part, s.TimePrefix); ok && s.TimePrefix != "" {
			times = append(times, text)
		} else if text, ok := strings.CutPrefix(part, s.Prefix); ok {
			signatures = append(signatures, text)
		} else if mark := s.Prefix[max(len(s.Prefix)-1, 0):]; strings.Index(part, mark) < 1 { // not even another kind of signature
			return nil, "", refuse("%s has a part that does not begin with %s, or with another name and %q: correct prefix, or the sender", s.Header, s.Prefix, mark)
		}
	}
	if len(signatures) == 0 {
		return nil, "", refuse("no part of %s begins with %s", s.Header, s.Prefix)
	}
	switch {
	case s.TimePrefix != "" && (len(times) != 1 || !strings.HasPrefix(header, s.TimePrefix)):
		return nil, "", refuse("%s does not begin with its only part %s", s.Header, s.TimePrefix)
	case s.TimePrefix != "":
		written = times[0]
	case s.TimeHeader != "":
		if written, err = only(r, s.TimeHeader); err != nil {
			return nil, "", err
		}
	}
	return signatures, written, nil
}

// others names the headers of a request that look as if another sender had signed it.
func others(r *http.Request) string {
	var names []string
	for name := range r.Header {
		if is := strings.ToLower(name); strings.Contains(is, "signature") || strings.Contains(is, "hmac") {
			names = append(names, fmt.Sprintf("%.50s", name))
		}
	}
	if names == nil {
		return ""
	}
	slices.Sort(names)
	return ", but " + strings.Join(names[:min(3, len(names))], ", ") + ": correct verify, or the address at the sender"
}

// only returns the value of a header that comes once. If it came twice, this program and
// the one behind it could read different ones.
func only(r *http.Request, name string) (string, error) {
	lines := r.Header.Values(name)
	switch len(lines) {
	case 0:
		return "", refuse("the request has no header %s", name)
	case 1:
		return lines[0], nil
	}
	return "", refuse("the request has %d headers %s, expected one", len(lines), name)
}

// contents returns the content that the sender may have signed. There are two of them if the
// sender may have left the port out of an address, or written it.
func (v *Verifier) contents(r *http.Request, body []byte, written string) ([][]byte, error) {
	addresses := []string{""}
	if slices.Contains(v.content, piece{value: "url"}) {
		switch _, query, isWhole := strings.Cut(v.opts.URL, "?"); {
		case isWhole && r.URL.RawQuery != query:
			return nil, refuse("the query of the address is not that in url")
		case !isWhole && r.URL.RawQuery != "" && !endsAddress(v.content):
			return nil, refuse("no space or line break is between the address and the value next to it, so two requests could have one content: write the query in url too")
		}
		addresses = v.addresses(r)
	}
	list := make([][]byte, 0, len(addresses))
	for _, address := range addresses {
		content := make([]byte, 0, len(v.scheme.Signed)+len(body)+64)
		for i, p := range v.content {
			switch p.value {
			case "":
				content = append(content, p.text...)
			case "body":
				content = append(content, body...)
			case "time":
				content = append(content, written...)
			case "url":
				content = append(content, address...)
			case "method":
				content = append(content, r.Method...)
			case "form":
				form, err := sortedForm(r, body)
				if err != nil {
					return nil, err
				}
				content = append(content, form...)
			default:
				name := strings.TrimPrefix(p.value, "header:")
				value, err := only(r, name)
				if err != nil {
					return nil, err
				}
				if end := v.content[i+1].text; strings.Index(value+end, end) < len(value) { // two requests could have one content
					return nil, refuse("%s contains %q, which ends it in the signed content", name, end)
				}
				content = append(content, value...)
			}
		}
		list = append(list, content)
	}
	return list, nil
}

// addresses returns the address of a request as its sender may have written it.
func (v *Verifier) addresses(r *http.Request) []string {
	address := v.opts.URL
	if address == "" {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		address = scheme + "://" + r.Host + r.URL.EscapedPath()
	}
	if r.URL.RawQuery != "" && !strings.Contains(v.opts.URL, "?") {
		address += "?" + r.URL.RawQuery
	}
	list := []string{address}
	u, err := url.Parse(address)
	if err != nil {
		return list
	}
	standard := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	begin := len(u.Scheme) + len("://")
	authority, rest := address[begin:begin+len(u.Host)], address[begin+len(u.Host):]
	if port := u.Port(); port != "" {
		return append(list, address[:begin]+strings.TrimSuffix(authority, ":"+port)+rest)
	}
	return append(list, address[:begin]+authority+":"+standard+rest)
}

// sortedForm returns names and values of a form, sorted and without separators. Of another
// body the address has the digest. The Content-Type is not signed, so a digest counts for a form
// too, and a form without fields does not: its content would be that of the address alone.
func sortedForm(r *http.Request, body []byte) (string, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	got, hasDigest := r.URL.Query()["bodySHA256"]
	if hasDigest || err != nil || kind != "application/x-www-form-urlencoded" {
		digest := sha256.Sum256(body)
		want := hex.EncodeToString(digest[:])
		if len(got) != 1 || subtle.ConstantTimeCompare([]byte(got[0]), []byte(want)) == 0 {
			return "", refuse("the address has no bodySHA256 with the digest of the body, and the body is no form or the address has another one")
		}
		return "", nil
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return "", refuse("the body is not the form that its Content-Type says")
	}
	if _, nameless := form[""]; nameless || len(form) == 0 {
		return "", refuse("the form has no fields, or one without a name: its signature could be that of the address alone")
	}
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	var out strings.Builder
	for _, name := range names {
		values := form[name]
		slices.Sort(values)
		for _, value := range slices.Compact(values) {
			out.WriteString(name + value)
		}
	}
	return out.String(), nil
}

// late returns an error if the time of a request is too far from now. The signature is valid,
// so it is the time of the sender.
func (v *Verifier) late(written string) error {
	if !v.scheme.Timed() {
		return nil
	}
	at, err := v.scheme.time(written)
	if err != nil {
		return err
	}
	late := tooLate(at, v.opts.Tolerance)
	if late == nil {
		return nil
	}
	for _, unit := range TimeUnits() {
		in := Scheme{TimeUnit: unit}
		if at, err := in.time(written); err == nil && tooLate(at, v.opts.Tolerance) == nil {
			return refuse("the time of the request is not in %s, but in %s: correct time_unit", v.scheme.TimeUnit, unit)
		}
	}
	return late
}

func tooLate(at time.Time, tolerance time.Duration) error {
	if off := time.Since(at).Round(time.Second); off > tolerance || off < -tolerance {
		return refuse("the time of the request, %s, is beyond the tolerance of %v from now: it is late or was recorded, or the clock of this machine is wrong", at.UTC().Format(time.RFC3339), tolerance)
	}
	return nil
}

// time reads the time of a request.
func (s *Scheme) time(written string) (time.Time, error) {
	if s.TimeUnit == "rfc3339" {
		at, err := time.Parse(time.RFC3339Nano, written)
		if err != nil {
			return time.Time{}, refuse("the time of the request is not in RFC 3339")
		}
		return at, nil
	}
	n, err := strconv.ParseInt(written, 10, 64)
	// A zero before it could be a part of the body before it in the signed content.
	if err != nil || strings.Trim(written, "0123456789") != "" || len(written) > 1 && written[0] == '0' {
		return time.Time{}, refuse("the time of the request is not a number of %s", s.TimeUnit)
	}
	switch s.TimeUnit {
	case "ms":
		return time.UnixMilli(n), nil
	case "us":
		return time.UnixMicro(n), nil
	case "ns":
		return time.Unix(0, n), nil
	}
	return time.Unix(n, 0), nil
}
