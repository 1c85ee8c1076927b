package provider

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/jsontext"
)

// SNSOptions are the options of NewSNS.
type SNSOptions struct {
	// Topics are the ARNs of the topics whose messages are accepted. Defaults to nil: all
	// topics, also those of strangers.
	Topics []string
	// Hosts are the hosts from which certificates are fetched and at which subscriptions are
	// confirmed, with https: host or host:port, in which * is a region such as eu-west-1. http://
	// before it allows that instead. Whoever serves such a host signs messages. Defaults to those
	// of Amazon.
	Hosts []string
	// Tolerance is how far the time of a message may be from now. Defaults to 2 hours: SNS
	// repeats a message for an hour.
	Tolerance time.Duration
	// TLS secures the connections to Hosts. Defaults to the authorities of the system.
	TLS *tls.Config
}

// DefaultHosts returns the hosts of Amazon SNS.
func DefaultHosts() []string {
	return []string{"sns.*.amazonaws.com", "sns.*.amazonaws.com.cn"}
}

// DefaultSNSTolerance is how far the time of a message of SNS may be from now.
const DefaultSNSTolerance = 2 * time.Hour

// SNS checks messages of Amazon SNS, which are signed with the key of a certificate. It is
// safe for concurrent use.
type SNS struct {
	opts     SNSOptions
	client   *http.Client
	fetching chan struct{} // has an element for each certificate that is being fetched
	mu       sync.Mutex    // guards certificates
	// certificates are those that are known, and addresses that have none. Nobody has signed
	// what asks for them yet, so a fetch is for all requests that need it.
	certificates map[string]*certificate
}

// certificate is what is at an address.
type certificate struct {
	fetched chan struct{} // closed when the fields below are set
	by      signer
	err     error
	until   time.Time // then it is fetched again
}

// isOld reports whether a certificate must be fetched again.
func (c *certificate) isOld(now time.Time) bool {
	select {
	case <-c.fetched:
		return now.After(c.until)
	default:
		return false
	}
}

// signer is the key of a certificate.
type signer struct {
	key                 *rsa.PublicKey
	notBefore, notAfter time.Time
}

const (
	fetchPatience = 5 * time.Second
	// failedFor is how long an address is not asked again that had no valid certificate.
	failedFor   = 5 * time.Second
	mostFetches = 4 // at a time
	// mostKeys bounds the certificates in memory. SNS replaces its certificate about once a
	// year, and has one for each region.
	mostKeys        = 64
	mostCertificate = 64 << 10
	// certificateName begins the name of the file with a certificate.
	certificateName = "SimpleNotificationService-"
)

// NewSNS returns an SNS. One error names all invalid options, and wraps
// semel.ErrInvalidRequest.
func NewSNS(opts *SNSOptions) (*SNS, error) {
	var o SNSOptions
	if opts != nil {
		o = *opts
	}
	if o.Hosts == nil {
		o.Hosts = DefaultHosts()
	}
	o.Tolerance = cmp.Or(o.Tolerance, DefaultSNSTolerance)
	wrong := invalid.In("provider: SNSOptions.")
	for _, host := range o.Hosts {
		if err := CheckHost(host); err != nil {
			wrong.Add("Hosts: %q: %v", host, err)
		}
	}
	if o.Tolerance < 0 {
		wrong.Add("Tolerance: %v is negative", o.Tolerance)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	// A connection is for one certificate a year.
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: o.TLS, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	return &SNS{opts: o, fetching: make(chan struct{}, mostFetches), certificates: map[string]*certificate{}, client: &http.Client{
		Transport: transport, Timeout: fetchPatience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it redirects to another address") },
	}}, nil
}

// CheckHost returns the problem with one of SNSOptions.Hosts, or nil.
func CheckHost(host string) error {
	if strings.HasPrefix(host, "https://") {
		return errors.New("leave https:// out: it is the default")
	}
	host = strings.TrimPrefix(host, "http://")
	if u, err := url.Parse("https://" + strings.ReplaceAll(host, "*", "any")); err != nil || u.Host == "" || u.Host != strings.ReplaceAll(host, "*", "any") {
		return errors.New("not a host: write it like sns.eu-west-1.amazonaws.com")
	}
	return nil
}

// Handshakes returns the requests about subscriptions, which are no messages. A subscription
// is confirmed by a visit to the address in the request.
func (s *SNS) Handshakes() []*Handshake {
	return []*Handshake{
		{
			Method: http.MethodPost, When: map[string]string{".Type": "SubscriptionConfirmation"}, visitAt: ".SubscribeURL", visit: s.confirm,
			Note: "the subscription is confirmed", NoteAt: ".TopicArn",
		},
		{
			Method: http.MethodPost, When: map[string]string{".Type": "UnsubscribeConfirmation"},
			Note: "the subscription has ended, and no more messages come: subscribe again if that is wrong", NoteAt: ".TopicArn", Ends: true,
		},
	}
}

// confirm visits an address that confirms a subscription.
func (s *SNS) confirm(ctx context.Context, address string) error {
	u, err := s.allowed("SubscribeURL", address)
	if err != nil {
		return err
	}
	if _, err := s.get(ctx, u); err != nil {
		return &UnavailableError{Err: fmt.Errorf("the subscription is not confirmed: %w", err)}
	}
	return nil
}

// allowed returns the address in a member of a message, if its host is allowed.
func (s *SNS) allowed(member, address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Opaque != "" || u.User != nil || u.Fragment != "" {
		return nil, refuse("%s is not an address", member)
	}
	for _, host := range s.opts.Hosts {
		scheme := "https"
		if plain, ok := strings.CutPrefix(host, "http://"); ok {
			scheme, host = "http", plain
		}
		if strings.HasPrefix(address, scheme+"://") && matches(host, u.Host) {
			return u, nil
		}
	}
	return nil, refuse("%s is at %s://%.200s, which is not among the allowed hosts: %s (with https, if there is no http:// before it)", member, u.Scheme, u.Host, strings.Join(s.opts.Hosts, ", "))
}

// region is the name of a region. A bucket of S3 that is called sns has a host such as
// sns.s3.amazonaws.com or sns.s3-eu-west-1.amazonaws.com, and a stranger fills it.
var region = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]+$`)

// matches reports whether a host has the form of pattern, in which * is a region.
func matches(pattern, host string) bool {
	want, got := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(want) != len(got) {
		return false
	}
	for i, part := range want {
		if part != got[i] && (part != "*" || !region.MatchString(got[i])) {
			return false
		}
	}
	return true
}

// UnavailableError says that a request cannot be checked or answered now, because of another
// server: it must be sent again. Its text is for the operator, and not for the sender.
type UnavailableError struct {
	Err error
	// MadeUp says that a stranger may have made the address up: the server has answered, and
	// no signature was checked.
	MadeUp bool
}

// Error implements error.
func (e *UnavailableError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// Verify returns nil if a request with this body comes from an accepted topic of SNS. An
// [*UnavailableError] means that the certificate could not be fetched. Other errors are a
// [*Refusal].
func (s *SNS) Verify(r *http.Request, body []byte) error {
	const raw = ": raw message delivery must be off, because raw messages have no signature"
	members, err := membersOf(body)
	switch {
	case errors.Is(err, errNoObject):
		return &Refusal{Why: err.Error() + raw, Missing: true}
	case err != nil:
		return refuse("%v", err)
	}
	if _, there := members["Signature"]; !there {
		return &Refusal{Why: "Signature is missing" + raw, Missing: true}
	}
	content, err := signedBySNS(members)
	if err != nil {
		return err
	}
	text := func(name string) string { value, _ := textOf(members[name]); return value }
	signature, err := base64.StdEncoding.Strict().DecodeString(text("Signature"))
	if err != nil || len(signature) == 0 {
		return refuse("Signature is missing, or is not base64")
	}
	var sum crypto.Hash
	var digest []byte
	switch text("SignatureVersion") {
	case "1":
		d := sha1.Sum(content)
		sum, digest = crypto.SHA1, d[:]
	case "2":
		d := sha256.Sum256(content)
		sum, digest = crypto.SHA256, d[:]
	default:
		return refuse("SignatureVersion is neither 1 nor 2")
	}
	if topic := text("TopicArn"); s.opts.Topics != nil && !slices.Contains(s.opts.Topics, topic) {
		return refuse("the topic %.200s is not among topics", topic)
	}
	at, err := time.Parse(time.RFC3339Nano, text("Timestamp"))
	if err != nil {
		return refuse("Timestamp is not a time in RFC 3339")
	}
	if err := tooLate(at, s.opts.Tolerance); err != nil {
		return err
	}
	by, err := s.signer(r.Context(), text("SigningCertURL"))
	if err != nil {
		return err
	}
	if now := time.Now(); now.Before(by.notBefore) || now.After(by.notAfter) {
		return refuse("the certificate is valid from %s to %s only", by.notBefore.Format(time.RFC3339), by.notAfter.Format(time.RFC3339))
	}
	if rsa.VerifyPKCS1v15(by.key, sum, digest, signature) != nil {
		return refuse("Signature is not that of this message: check that nothing changes the body on its way")
	}
	return nil
}

// signedBySNS returns the signed content of a message: names and values in lines. Only the
// Message, which is first, may have several lines. Otherwise a value could end in another one,
// and two messages could have one content.
func signedBySNS(members map[string]json.RawMessage) ([]byte, error) {
	kind, _ := textOf(members["Type"])
	names := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	switch kind {
	case "Notification":
	case "SubscriptionConfirmation", "UnsubscribeConfirmation":
		names = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	default:
		return nil, refuse("Type is not that of a message of SNS")
	}
	var out bytes.Buffer
	for _, name := range names {
		raw, there := members[name]
		if name == "Subject" && (!there || string(raw) == "null") {
			continue
		}
		value, ok := textOf(raw)
		if !ok || name != "Message" && strings.ContainsAny(value, "\r\n") {
			return nil, refuse("%s is missing, or is not a text of one line", name)
		}
		out.WriteString(name + "\n" + value + "\n")
	}
	return out.Bytes(), nil
}

// signer returns the key of the certificate at an address.
func (s *SNS) signer(ctx context.Context, address string) (signer, error) {
	u, err := s.allowed("SigningCertURL", address)
	if err != nil {
		return signer{}, err
	}
	if name := path.Base(u.Path); !strings.HasPrefix(name, certificateName) || path.Ext(name) != ".pem" || u.RawQuery != "" {
		return signer{}, refuse("SigningCertURL is not the address of a certificate (%s….pem)", certificateName)
	}
	c, known := s.certificate(address)
	if !known {
		c.by, c.err = s.fetch(ctx, u)
		c.until = c.by.notAfter
		if now := time.Now(); now.After(c.until) {
			c.until = now.Add(failedFor)
		}
		close(c.fetched)
	}
	select {
	case <-c.fetched:
		return c.by, c.err
	case <-ctx.Done():
		return signer{}, unfetched(context.Cause(ctx))
	}
}

// certificate returns the certificate at an address. If it is not known, the caller must fetch it,
// and others wait for it.
func (s *SNS) certificate(address string) (c *certificate, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if c, known = s.certificates[address]; known && !c.isOld(now) {
		return c, true
	}
	if len(s.certificates) >= mostKeys {
		maps.DeleteFunc(s.certificates, func(_ string, c *certificate) bool { return c.isOld(now) })
	}
	c = &certificate{fetched: make(chan struct{})}
	if len(s.certificates) < mostKeys { // otherwise it is fetched again, and strangers push out no other one
		s.certificates[address] = c
	}
	return c, false
}

// fetch fetches the certificate at an address. A certificate that is not there is no refusal: a
// proxy may have answered instead. Other requests need it too, so the end of one does not end it.
func (s *SNS) fetch(ctx context.Context, u *url.URL) (signer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchPatience)
	defer cancel()
	select {
	case s.fetching <- struct{}{}:
		defer func() { <-s.fetching }()
	case <-ctx.Done():
		return signer{}, unfetched(errors.New("too many others are being fetched"))
	}
	data, err := s.get(ctx, u)
	if err != nil {
		return signer{}, unfetched(err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return signer{}, unfetched(&answerError{u.Host + " has none"})
	}
	found, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return signer{}, unfetched(&answerError{u.Host + " has none that can be read"})
	}
	key, ok := found.PublicKey.(*rsa.PublicKey)
	if !ok {
		return signer{}, refuse("the certificate at %s has no RSA key", u.Host)
	}
	return signer{key, found.NotBefore, found.NotAfter}, nil
}

// answerError is an answer of a server that is not the wanted one.
type answerError struct{ text string }

// Error implements error.
func (e *answerError) Error() string { return e.text }

// unfetched says that a certificate was not fetched.
func unfetched(err error) error {
	_, answered := errors.AsType[*answerError](err)
	return &UnavailableError{Err: fmt.Errorf("the certificate was not fetched: %w", err), MadeUp: answered}
}

// get returns the content at an address.
func (s *SNS) get(ctx context.Context, u *url.URL) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s does not answer: %w", u.Host, errors.Unwrap(err)) // without the address, which may have a token
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, mostCertificate))
	_ = response.Body.Close() // it was read as far as it is needed
	switch {
	case response.StatusCode != http.StatusOK:
		return nil, &answerError{u.Host + " answers " + response.Status}
	case err != nil:
		return nil, fmt.Errorf("the answer of %s broke off: %w", u.Host, err)
	}
	return data, nil
}

// mostMembers is how many members an object may have in which a signature or a challenge is
// looked for. A stranger may have sent it, and each member takes memory.
const mostMembers = 100

var errNoObject = errors.New("the body is not a JSON object in UTF-8")

// membersOf returns the members of a JSON object, without a copy of their values. A name that
// comes twice is refused, because another reader could take the other value.
func membersOf(body []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(body) || !json.Valid(body) || jsontext.Trim(body)[0] != '{' {
		return nil, errNoObject
	}
	object := jsontext.Trim(body)
	members := map[string]json.RawMessage{}
	for name, value, next := jsontext.Next(object, 0); value != nil; name, value, next = jsontext.Next(object, next) {
		text, ok := textOf(name)
		switch _, twice := members[text]; {
		case !ok:
			return nil, errors.New("a name in the body has half of a surrogate pair")
		case twice:
			return nil, fmt.Errorf("the body has %.50q twice", text)
		case len(members) == mostMembers:
			return nil, fmt.Errorf("the body has more than %d members", mostMembers)
		}
		members[text] = json.RawMessage(value)
	}
	return members, nil
}

// textOf returns a value that is a text. Half of a surrogate pair has no text of its own: two
// values with different halves would be equal.
func textOf(raw []byte) (string, bool) {
	var text *string
	if len(raw) == 0 || hasHalf(raw) || json.Unmarshal(raw, &text) != nil || text == nil {
		return "", false
	}
	return *text, true
}

// hasHalf reports whether a valid JSON text has an escape of half of a surrogate pair.
func hasHalf(raw []byte) bool {
	escaped := func(at int) rune { // 0 if there is no escape with four digits
		if !bytes.HasPrefix(raw[at:], []byte(`\u`)) {
			return 0
		}
		r, _ := strconv.ParseUint(string(raw[at+2:at+6]), 16, 32) // the text is valid
		return rune(r)
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		r := escaped(i)
		switch {
		case !utf16.IsSurrogate(r):
			i++ // what follows is escaped
		case utf16.DecodeRune(r, escaped(i+6)) == utf8.RuneError:
			return true
		default:
			i += 11
		}
	}
	return false
}
