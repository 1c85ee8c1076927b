package http

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/httpsrc"
	"github.com/semel-dev/semel/broker/httpsrc/provider"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// verifier is one way of verify.
type verifier interface {
	// key is the key rule of a pipeline that has none, or nil.
	key() *key.Rule
	// varies says that attempts of one event differ in content.
	varies() bool
	// limits are exceptions of the promise.
	limits() []string
	lint(l *config.Linter)
	examine(ctx context.Context, x *config.Examination)
	// open sets how requests are verified.
	open(opts *httpsrc.Options) error
}

// verifyField has one of the presets, or a scheme.
func verifyField(target *verifier) schema.Field {
	members := func() schema.Mapping {
		var kinds []schema.Field
		for _, p := range provider.Presets() {
			kinds = append(kinds, schema.KindField(p.Name, target, func() (verifier, schema.Mapping) {
				s := &signed{Preset: p}
				return s, schema.Mapping{Fields: s.fields(), Check: func(schema.Value, schema.Members) { s.checkSecrets() }}
			}, "Requests of "+p.Title+". The key is "+keyText(p.Key)+" if the pipeline has none."))
			if !strings.Contains(p.Signed, "{url}") {
				kinds[len(kinds)-1] = kinds[len(kinds)-1].Titled("Signatures by a shared secret")
			}
		}
		kinds = append(kinds,
			schema.KindField("sns", target, func() (verifier, schema.Mapping) {
				s := &sns{}
				return s, s.mapping()
			}, "Messages of Amazon SNS. The key is "+keyText(provider.SNSKey())+" if the pipeline has none."),
			schema.KindField("hmac", target, func() (verifier, schema.Mapping) {
				s := &signed{Preset: provider.Preset{Title: "the sender"}}
				return s, s.scheme()
			}, "Requests of another sender that signs with a shared secret."),
		)
		return schema.KindsOf(kinds...)
	}
	return schema.Field{Name: "verify", Doc: "How the sender signs its requests. A request without a valid signature gets a 401. It has one kind.", Form: schema.Form{Members: members}, Shown: "no signatures", Read: func(v schema.Value) {
		v.Kind(members(), "verify", `{ stripe: { secrets: ["${env:STRIPE_SECRET}"] } }`)
	}}
}

// keyRule returns the rule that a sender documents: the first of several composites.
func keyRule(alternatives [][]string) *key.Rule {
	if len(alternatives) == 0 {
		return nil
	}
	var first []*key.Rule
	for _, composite := range alternatives {
		var all []*key.Rule
		for _, text := range composite {
			all = append(all, mustRule(key.ParseRule(text)))
		}
		if len(all) == 1 {
			first = append(first, all[0])
		} else {
			first = append(first, mustRule(key.All(all...)))
		}
	}
	if len(first) == 1 {
		return first[0]
	}
	return mustRule(key.First(first...))
}

// keyText describes such a rule.
func keyText(alternatives [][]string) string {
	var list []string
	for _, composite := range alternatives {
		list = append(list, "`"+strings.Join(composite, "` with `")+"`")
	}
	return strings.Join(list, ", or ")
}

// mustRule returns a rule of the presets, which are valid.
func mustRule(rule *key.Rule, err error) *key.Rule {
	if err != nil {
		panic(err)
	}
	return rule
}

// signed checks signatures by a shared secret.
type signed struct {
	provider.Preset
	Secrets   []schema.Secret
	written   []schema.Value // of Secrets
	Tolerance time.Duration
	URL       string
}

func (s *signed) fields() []schema.Field {
	fields := []schema.Field{
		secretsField(s),
		schema.DurationField("tolerance", &s.Tolerance, "How far the time in a signature may be from now. Senders that sign no time ignore it.").Or(schema.Duration(provider.DefaultTolerance)),
	}
	if strings.Contains(s.Signed, "{url}") {
		fields = append(fields, urlField(&s.URL))
	}
	return fields
}

// secretsField is the list of secrets.
func secretsField(s *signed) schema.Field {
	return schema.ListField("secrets", schema.Form{Scalar: schema.ScalarSecret}, func(v schema.Value) {
		v.List(func(element schema.Value) {
			var secret schema.Secret
			element.Secret(&secret)
			if secret.IsZero() {
				return
			}
			s.Secrets, s.written = append(s.Secrets, secret), append(s.written, element)
		})
	}, "The secrets, as the sender shows them. A signature by any of them is valid: write old and new while a secret is replaced.").Need()
}

// checkSecrets reports secrets that cannot be decoded.
func (s *signed) checkSecrets() {
	for i, secret := range s.Secrets {
		if _, err := s.Secret(secret.Reveal()); err != nil {
			s.written[i].Wrong("%v", err)
		}
	}
}

func urlField(target *string) schema.Field {
	return schema.Field{Name: "url", Doc: "The address to which the sender sends, as it is configured there. Behind a proxy it is needed, because it is signed. If it has a query, requests need that query.", Form: schema.Form{Scalar: schema.ScalarText}, Shown: "that of the request", Read: func(v schema.Value) {
		v.Text(target)
		if u, err := url.Parse(*target); *target != "" && (err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || !schema.HasScheme(*target, "http", "https")) {
			v.Wrong("not the address of a receiver: write it like https://example.com/webhooks")
		}
	}}
}

// scheme has the fields of a sender that no preset knows.
func (s *signed) scheme() schema.Mapping {
	h := &s.Scheme
	return schema.Mapping{
		Fields: []schema.Field{
			schema.TextField("header", &h.Header, "Header with the signature.").Need(),
			secretsField(s),
			schema.ChoiceField("algorithm", &h.Algorithm, "Hash of the HMAC.", provider.Algorithms()...).Or("sha256"),
			schema.ChoiceField("encoding", &h.Encoding, "Encoding of the signature.", provider.Encodings()...).Or("hex"),
			schema.TextField("prefix", &h.Prefix, "Text before a signature, as in `sha256=`."),
			schema.TextField("separator", &h.Separator, "Text between the parts of the header. Parts without `prefix` are ignored.").Means("the header has one part"),
			schema.TextField("signed", &h.Signed, "The signed content: a text with `{body}`, `{time}`, `{url}`, `{method}`, `{header:NAME}` and `{form}`, which is names and values of a form, sorted.").Or("{body}"),
			schema.TextField("time_header", &h.TimeHeader, "Header with the time of the request.").Means("no time"),
			schema.TextField("time_prefix", &h.TimePrefix, "Text before the time, if it is the first part of `header`, as in `t=`."),
			schema.ChoiceField("time_unit", &h.TimeUnit, "Unit of that time.", provider.TimeUnits()...).Or("s"),
			schema.DurationField("tolerance", &s.Tolerance, "How far that time may be from now.").Or(schema.Duration(provider.DefaultTolerance)),
			schema.ChoiceField("secret_encoding", &h.SecretEncoding, "Encoding of the secrets.", provider.SecretEncodings()...).Or("text"),
			urlField(&s.URL),
		},
		Check: func(v schema.Value, there schema.Members) {
			at := func(name string) schema.Value {
				if field, ok := there[name]; ok {
					return field
				}
				return v
			}
			s.checkSecrets()
			if err := h.Check(); err != nil {
				at("signed").Wrong("%v", err)
			}
			if h.TimePrefix != "" && (h.Separator == "" || h.TimeHeader != "" || h.TimePrefix == h.Prefix) {
				at("time_prefix").Wrong("it needs a separator, another text than prefix, and no time_header")
			}
		},
	}
}

func (s *signed) key() *key.Rule { return keyRule(s.Key) }

func (s *signed) varies() bool { return s.Varies }

func (s *signed) limits() []string {
	list := []string{"a request without a valid signature of " + s.Title + " gets a 401, and nothing is claimed"}
	if s.Uncovered != "" {
		list = append(list, "the header "+s.Uncovered+", which has the key, is not signed: a person who has a whole request can send it again under another key")
	}
	if strings.Contains(s.Signed, "{form}") {
		list = append(list, "names and values of a form are signed in one row, without anything between them: a person who has a whole request can divide them in another way")
	}
	return append(list, typeUnsigned)
}

// typeUnsigned is an exception at all senders.
const typeUnsigned = "Content-Type and Content-Encoding are not signed: a person who has a whole request can change how its body is read, before it arrives for the first time"

func (s *signed) lint(l *config.Linter) {
	path := l.At("source.http.verify." + cmp.Or(s.Name, "hmac"))
	lintUncovered(l, s.key(), func(header string) bool {
		return strings.EqualFold(header, s.TimeHeader) || strings.Contains(strings.ToLower(s.Signed), "{header:"+strings.ToLower(header)+"}")
	})
	if given := path + ".tolerance"; !s.Timed() && l.Given(given) {
		l.Notice(given, schema.Duration(s.Tolerance), "it has no effect: the signature has no time", "leave it out")
	}
	if on := l.Pipeline.OnMismatch; s.Varies && on != "ignore" {
		l.Add(doctor.Warning, config.NoRisk, l.At("on_mismatch"), on, s.Title+" changes the content from attempt to attempt, so a repeated event counts as another one with its key", "leave on_mismatch out")
	}
	if s.Timed() {
		lintTolerance(l, s.Tolerance)
	}
	if strings.Contains(s.Signed, "{url}") && s.URL == "" {
		l.Notice(path, "the signature covers the address that the sender called, and url is not set", "behind a proxy that ends TLS or changes the address, every request gets a 401; without one, the host is the one that the request names", "set url to the address that is configured at the sender")
	}
}

// examine looks at the secrets, without showing them.
func (s *signed) examine(_ context.Context, x *config.Examination) {
	subject := "source.http.verify." + cmp.Or(s.Name, "hmac")
	for i, secret := range s.Secrets {
		if !strings.HasPrefix(secret.Reveal(), s.SecretsBegin) {
			x.Note(doctor.Warning, fmt.Sprintf("%s.secrets[%d]", subject, i), "the secret does not begin with "+s.SecretsBegin+", as those of "+s.Title+" do", "requests that "+s.Title+" signs get a 401", "copy the signing secret of the endpoint; an API key signs nothing")
			return
		}
	}
	by := "the secret"
	if len(s.Secrets) > 1 {
		by = fmt.Sprintf("one of %d secrets", len(s.Secrets))
	}
	x.Note(doctor.Fine, subject, "a request needs a signature by "+by, "", "")
}

// lintTolerance compares how long a request is accepted with how long its key is remembered.
func lintTolerance(l *config.Linter, tolerance time.Duration) {
	if l.Pipeline.Window < 2*tolerance {
		l.Add(doctor.Warning, config.Repeat, l.At("window"), schema.Duration(l.Pipeline.Window)+", but a request is accepted for "+schema.Duration(2*tolerance)+" (tolerance before and after now)",
			"someone who has a request can send it again after its key was forgotten", "write window: "+schema.Duration(2*tolerance)+" or more, or a shorter tolerance")
	}
}

func (s *signed) open(to *httpsrc.Options) error {
	opts := &provider.VerifierOptions{Tolerance: s.Tolerance, URL: s.URL}
	for _, secret := range s.Secrets {
		decoded, err := s.Secret(secret.Reveal())
		if err != nil {
			return fmt.Errorf("a secret of verify: %w: %w", err, semel.ErrInvalidRequest)
		}
		opts.Secrets = append(opts.Secrets, decoded)
	}
	v, err := provider.NewVerifier(s.Scheme, opts)
	if err != nil {
		return err
	}
	to.Verify, to.AttemptHeaders = v.Verify, []string{s.Header}
	if s.TimeHeader != "" {
		to.AttemptHeaders = append(to.AttemptHeaders, s.TimeHeader)
	}
	if s.Preset.Handshake != nil {
		to.Handshakes = append(to.Handshakes, s.Preset.Handshake)
	}
	return nil
}

// sns checks messages of Amazon SNS.
type sns struct {
	Topics, Hosts []string
	Tolerance     time.Duration
	TLS           *config.TLS
}

func (s *sns) mapping() schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.ListField("topics", schema.Form{Scalar: schema.ScalarText}, func(v schema.Value) {
			v.List(func(element schema.Value) {
				var topic string
				element.Text(&topic)
				if parts := strings.Split(topic, ":"); topic != "" && (len(parts) != 6 || parts[0] != "arn" || parts[2] != "sns" || parts[5] == "") {
					element.Wrong("not the ARN of a topic: write it like arn:aws:sns:eu-west-1:123456789012:orders")
				}
				s.Topics = append(s.Topics, topic)
			})
		}, "ARNs of the topics whose messages and subscriptions are accepted. Without them, anyone with a topic of SNS can send messages.").Means("all topics"),
		schema.ListField("hosts", schema.Form{Scalar: schema.ScalarText}, func(v schema.Value) {
			v.List(func(element schema.Value) {
				var host string
				element.Text(&host)
				if host == "" {
					return
				}
				if err := provider.CheckHost(host); err != nil {
					element.Wrong("%v", err)
				}
				s.Hosts = append(s.Hosts, host)
			})
		}, "Hosts from which certificates are fetched, and at which subscriptions are confirmed: `host` or `host:port`, in which `*` is a region such as `eu-west-1`. `http://` before it does without TLS.").Means("`" + strings.Join(provider.DefaultHosts(), "`, `") + "`"),
		schema.DurationField("tolerance", &s.Tolerance, "How far the time of a message may be from now. SNS repeats a message for an hour.").Or(schema.Duration(provider.DefaultSNSTolerance)),
		config.TLSField(&s.TLS),
	}}
}

func (s *sns) key() *key.Rule { return keyRule(provider.SNSKey()) }

func (*sns) varies() bool { return false }

func (s *sns) limits() []string {
	return []string{
		"a request without a valid signature of Amazon SNS gets a 401, and nothing is claimed",
		"a certificate of SNS is trusted because it comes from the hosts over TLS: its own issuer is not checked",
		"SNS signs no MessageAttributes: a person who has a whole message can change them before it arrives for the first time",
		typeUnsigned,
	}
}

func (s *sns) lint(l *config.Linter) {
	path := l.At("source.http.verify.sns")
	lintUncovered(l, s.key(), func(string) bool { return false })
	if s.Topics == nil {
		l.Add(doctor.Warning, config.NoRisk, path, "no topics", "anyone with an account at Amazon can send messages from a topic of their own, signed by SNS", "set topics to the ARNs of your topics")
	}
	for _, host := range s.Hosts {
		if plain, ok := strings.CutPrefix(host, "http://"); ok && !config.IsLoopback(config.HostOf(plain)) && !config.IsLoopback(plain) {
			l.Add(doctor.Warning, config.NoRisk, path+".hosts", host, "an attacker on the way can replace the certificate, and sign messages", "leave http:// out")
		}
	}
	lintTolerance(l, s.Tolerance)
}

// lintUncovered looks for headers in the key that the signature does not cover. The rule that the
// sender documents is an exception that explain names.
func lintUncovered(l *config.Linter, documented *key.Rule, covers func(header string) bool) {
	rule, unwrap := l.Pipeline.Key.Rule, l.Pipeline.Unwrap
	if rule == nil || documented != nil && rule.String() == documented.String() {
		return
	}
	if unwrap != nil && unwrap.Key() != nil && rule.String() == unwrap.Key().String() { // made of the body
		return
	}
	for _, header := range headersOf(rule) {
		if !covers(header) {
			l.Add(doctor.Warning, config.Repeat, l.At("key.id"), "header:"+header+", which the signature does not cover", "a person who has a whole request can send it again under another key, and it takes effect again", "use a value of the body, such as .id, or let hmac cover the header")
		}
	}
}

// headersOf returns the headers in a rule.
func headersOf(rule *key.Rule) (list []string) {
	if name, ok := strings.CutPrefix(rule.String(), "header:"); ok && rule.Form() == key.FormHeader {
		list = append(list, name)
	}
	for _, part := range rule.Rules() {
		list = append(list, headersOf(part)...)
	}
	return list
}

// examine connects to the hosts that have the certificates, and sends nothing.
func (s *sns) examine(ctx context.Context, x *config.Examination) {
	const subject = "source.http.verify.sns"
	hosts := s.Hosts
	if hosts == nil {
		for _, topic := range s.Topics {
			if parts := strings.Split(topic, ":"); len(parts) > 3 { // arn:aws:sns:REGION:ACCOUNT:NAME
				hosts = append(hosts, "sns."+parts[3]+".amazonaws.com"+map[string]string{"aws-cn": ".cn"}[parts[1]])
			}
		}
	}
	slices.Sort(hosts)
	for _, host := range slices.Compact(hosts) {
		address, port := strings.TrimPrefix(host, "http://"), "443"
		if address != host {
			port = "80"
		}
		if strings.Contains(address, "*") {
			continue // the messages name the host
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			address = net.JoinHostPort(address, port)
		}
		connecting, cancel := context.WithTimeout(ctx, reachWithin)
		conn, err := (&net.Dialer{}).DialContext(connecting, "tcp", address)
		cancel()
		if err != nil {
			x.Note(doctor.Warning, subject, host+" cannot be reached: "+x.File.Redact(err.Error()), "requests of SNS get a 503, because their certificate cannot be fetched", "let this machine connect to "+address)
			continue
		}
		_ = conn.Close() // nothing was sent
		x.Note(doctor.Fine, subject, host+" accepts connections", "", "")
	}
}

// reachWithin limits the time for one connection.
const reachWithin = 5 * time.Second

func (s *sns) open(to *httpsrc.Options) error {
	opts := &provider.SNSOptions{Topics: s.Topics, Hosts: s.Hosts, Tolerance: s.Tolerance}
	var err error
	if opts.TLS, err = s.TLS.Config(); err != nil {
		return err
	}
	v, err := provider.NewSNS(opts)
	if err != nil {
		return err
	}
	to.Verify, to.Handshakes = v.Verify, v.Handshakes()
	return nil
}

// lintUnverified looks for a key that a known sender brings, at a source that accepts it from
// anyone.
func lintUnverified(l *config.Linter) {
	for _, p := range provider.Presets() {
		for _, composite := range p.Key {
			for _, part := range composite {
				if !strings.HasPrefix(part, "header:") || !has(l.Pipeline.Key.Rule, part) {
					continue
				}
				l.Notice(l.At("source.http"), "no verify, but the key has "+part+", which "+p.Title+" sends", "anyone who can connect can send such requests", `write verify: { `+p.Name+`: { secrets: ["${env:SECRET}"] } }`)
				return
			}
		}
	}
}

// has reports whether a rule is a header, or has it in it. Headers have no case.
func has(rule *key.Rule, header string) bool {
	return strings.EqualFold(rule.String(), header) || slices.ContainsFunc(rule.Rules(), func(part *key.Rule) bool { return has(part, header) })
}
