// Package http is the kind of source that receives messages as HTTP requests.
package http

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel/broker/httpsrc"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Source receives messages as HTTP requests. It answers when a message's outcome
// is durable.
type Source struct {
	config.SourceBase
	Listen string
	Path   string
	// MaxBody is the maximum size of a body in bytes.
	MaxBody int64
	TLS     *config.ServerTLS
	// Token is the bearer token that requests must send. Zero means none.
	Token schema.Secret
	// Split is where a request has its messages, or nil if it is one.
	Split *httpsrc.Split
	// Verify checks the signatures of requests. It is nil if they need none.
	Verify verifier
	// Handshake is a request of the sender that is no message. It may be nil.
	Handshake *handshake
	// Wait is how long a request waits for the outcome of its message.
	Wait time.Duration
}

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "http" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{Doc: "Bodies of requests. Bodies with `Content-Encoding` `gzip`, `deflate` or `zstd` are decompressed. A form (`application/x-www-form-urlencoded`) becomes a JSON object: its fields are texts, and a name that comes several times has the list of its values. A request is answered when the outcome of its message is durable. While `in_flight.bytes` are in memory, further requests get a 503.", Fields: []schema.Field{
		{Name: "listen", Doc: "Address to listen on.", Form: schema.Form{Scalar: schema.ScalarText}, Required: true, Read: func(v schema.Value) {
			v.Text(&s.Listen)
			v.CheckListen(s.Listen)
		}},
		{Name: "path", Doc: "Path that takes messages. Other paths get a 404.", Form: schema.Form{Scalar: schema.ScalarText}, Initial: "/", Read: func(v schema.Value) {
			if v.Text(&s.Path); s.Path != "" && !strings.HasPrefix(s.Path, "/") {
				v.Wrong("it must start with /")
			}
		}},
		schema.SizeField("max_body", &s.MaxBody, "The maximum length of a body, as it is sent and as it is decompressed.").Or("1MiB"),
		{Name: "split", Doc: "Where a request has several messages: `array` for the elements of a JSON array, `lines` for lines, or a path such as `.events` for the elements of the array there. Each message needs a key from its body. The answer has their counts. Without it, a body is one message.", Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) {
			var text string
			if v.Text(&text); text == "" {
				return
			}
			split, err := httpsrc.ParseSplit(text)
			if err != nil {
				v.Wrong("%v", err)
			}
			s.Split = split
		}},
		schema.SecretField("token", &s.Token, "Bearer token that requests must send.").Means("none"),
		verifyField(&s.Verify),
		handshakeField(&s.Handshake),
		schema.DurationField("wait", &s.Wait, "How long a request waits for the outcome of its message. It then gets a 503 and can be sent again.").Or("30s"),
		config.ServerTLSField(&s.TLS),
	}}
}

// About implements config.Source.
func (s *Source) About(*config.Pipeline) config.SourceAbout {
	about := config.SourceAbout{
		Name:      "http " + s.Listen + s.Path,
		Again:     "the request gets no answer, and its sender sends it again",
		AfterAck:  config.AfterAck{Unsure: "the answer may not have arrived", Again: "a request that is sent again", Gets: "gets the same answer"},
		Shared:    true,
		TakesBack: "after %s its sender gets a 503 and can send it again",
		Never:     never, CaselessHeaders: true,

		NoPositions: "a request has no position",

		Exceptions: []string{"a request without a successful answer may or may not have been accepted: its sender sends it again, under the same key"},
	}
	if s.Verify != nil {
		about.Key, about.Varies = s.Verify.key(), s.Verify.varies()
		about.Exceptions = append(about.Exceptions, s.Verify.limits()...)
	}
	return about
}

// never says why a rule finds nothing in a request.
func never(r *key.Rule) string {
	name, isHeader := strings.CutPrefix(r.String(), "header:")
	switch {
	case r.Form() == key.FormRecordKey:
		return "a request has no record key"
	case r.Form() == key.FormMessageID:
		return "a request has no message id"
	case isHeader && httpsrc.IsKept(name):
		return "the source does not pass the header " + name + " on: it has a credential, or says how the request was sent"
	case isHeader && strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c) }):
		return "no header of HTTP has the name " + name
	}
	return ""
}

// Check implements config.Source. Messages of one request must not share a key: all but the
// first would be dropped.
func (s *Source) Check(c *config.Checker, p *config.Pipeline) {
	ofEnvelope := p.Unwrap != nil && p.Key.Rule == p.Unwrap.Key() // its headers are those of each message
	if s.Split != nil && p.Key.Rule != nil && !ofEnvelope && !divides(p.Key.Rule) {
		c.Report(p.At, "pipelines."+p.Name+".key.id", "with source.http.split, the messages of a request have the same headers, so %s would give them one key, and all but the first would be dropped: use a value of the body, such as .id", p.Key.Rule)
	}
}

// divides reports whether a rule gives messages with the same headers different keys.
func divides(r *key.Rule) bool {
	switch r.Form() {
	case key.FormHeader, key.FormRecordKey, key.FormMessageID:
		return false
	case key.FormFirst: // any of its rules may give the key
		return !slices.ContainsFunc(r.Rules(), func(part *key.Rule) bool { return !divides(part) })
	case key.FormAll, key.FormTemplate, key.FormShaped:
		return slices.ContainsFunc(r.Rules(), divides)
	}
	return true
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	if s.Verify != nil {
		s.Verify.lint(l)
	} else if s.Token.IsZero() {
		lintUnverified(l)
	}
	if s.Verify == nil && s.Token.IsZero() && (s.TLS == nil || s.TLS.ClientCA == "") && !config.IsLoopback(config.HostOf(s.Listen)) {
		l.Add(doctor.Warning, config.NoRisk, l.At("source.http.listen"), s.Listen+", which other machines can reach, without token", "anyone who can connect can send messages", "set verify or token, or tls with client_ca; or listen on a loopback address")
	}
	if s.TLS == nil && !s.Token.IsZero() && !config.IsLoopback(config.HostOf(s.Listen)) {
		l.Add(doctor.Warning, config.NoRisk, l.At("source.http.token"), "a token without tls", "it is sent in clear text", "set tls: { certificate, key }, or use a proxy with TLS")
	}
	if answer := l.Pipeline.Sink.About().Answer; s.Wait < answer {
		l.Notice(l.At("source.http.wait"), schema.Duration(s.Wait)+", but one request of the sink may take "+schema.Duration(answer),
			"the sender gets a 503 while its message is in progress", "write wait: "+schema.Duration(answer)+" or more")
	}
}

// Open implements config.Source.
func (s *Source) Open(_ context.Context, env *config.Env) (pipeline.Source, error) {
	opts := &httpsrc.Options{Listen: s.Listen, Path: s.Path, MaxBody: s.MaxBody, Wait: s.Wait, MaxBytes: env.Pipeline.InFlight.Bytes, Split: s.Split, Pipeline: env.Pipeline.Name, Observer: env.Observer}
	if !s.Token.IsZero() {
		opts.Authorization = "Bearer " + s.Token.Reveal()
	}
	var err error
	if s.Verify != nil {
		if err = s.Verify.open(opts); err != nil {
			return nil, err
		}
	}
	if s.Handshake != nil {
		opts.Handshakes = append(opts.Handshakes, s.Handshake.open())
	}
	if opts.TLS, err = s.TLS.Config(); err != nil {
		return nil, err
	}
	return config.AsSource(httpsrc.Open(opts))
}

// Examine implements config.Kind: it looks whether the address is free, and whether signatures
// can be checked.
func (s *Source) Examine(ctx context.Context, x *config.Examination) {
	if s.Verify != nil {
		s.Verify.examine(ctx, x)
	}
	listener, err := net.Listen("tcp", s.Listen)
	if err != nil {
		x.Note(doctor.Notice, "source.http.listen", err.Error(), "", "nothing if the pipeline is running; otherwise use another address")
		return
	}
	_ = listener.Close() // no client has connected
	x.Note(doctor.Fine, "source.http.listen", s.Listen+" is free", "", "")
}
