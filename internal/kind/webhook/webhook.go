// Package webhook is the kind of sink that sends each message as an HTTP request.
package webhook

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Sink sends each message as an HTTP request.
type Sink struct {
	config.SinkBase
	// URL may contain a password.
	URL     schema.Secret
	Method  string
	Headers []Header
	// Timeout limits one request.
	Timeout time.Duration
	// AllowPrivate are the networks of private addresses that may be reached.
	AllowPrivate []netip.Prefix
	TLS          *config.TLS
	// Success and Retry are additional statuses. Success means that the effect
	// happened; Retry means that another attempt may succeed.
	Success, Retry []int
	// Forward are the names of message headers that are sent on.
	Forward []string
}

// Header is a header of a request.
type Header struct {
	Name  string
	Value schema.Secret
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "webhook" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{Doc: "A request for each message, with the headers `Idempotency-Key`, `Semel-Attempt`, `Semel-Token`, `Semel-Scope` and `Semel-Redrive`. A response of at most 64KiB is kept as the key's result.", Check: func(_ schema.Value, there schema.Members) { s.checkStatuses(there) }, Fields: []schema.Field{
		{Name: "url", Doc: "Address of the target, `https://…`.", Form: schema.Form{Scalar: schema.ScalarAddress}, Required: true, Read: func(v schema.Value) { webhookURL(v, &s.URL) }},
		schema.ChoiceField("method", &s.Method, "Method of the request.", "POST", "PUT", "PATCH").Or("POST"),
		{Name: "headers", Doc: "Headers to add. Their values are treated as secrets.", Form: schema.Form{Named: &schema.Form{Scalar: schema.ScalarSecret}}, Read: func(v schema.Value) { readHeaders(v, &s.Headers) }},
		schema.DurationField("timeout", &s.Timeout, "The timeout of one request, including its answer.").Or("10s"),
		{Name: "allow_private", Doc: "Allow addresses that are not public: all of them (`true`), or those of networks such as `10.0.0.0/8`.", Initial: "false",
			Form: schema.Form{Either: []schema.Form{{Scalar: schema.ScalarTruth}, {Element: &schema.Form{Scalar: schema.ScalarText}}}}, Read: func(v schema.Value) { networks(v, &s.AllowPrivate) }},
		config.TLSField(&s.TLS),
		statusesField("success", &s.Success, "Statuses that mean success, in addition to 2xx."),
		statusesField("retry", &s.Retry, "Statuses that are retried, in addition to 403, 408, 409, 425, 429 and 5xx. After 401, 407, 502, 503, 504, and 429 with `Retry-After`, the pipeline pauses instead. After any other status, Semel gives up."),
		schema.ListField("forward", schema.Form{Scalar: schema.ScalarText}, func(v schema.Value) { v.List(func(element schema.Value) { forwarded(element, &s.Forward) }) }, "Names of message headers to forward. Their case counts, unless the messages come from a source `http`. `traceparent` and `tracestate` are always forwarded."),
	}}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	return config.SinkAbout{
		Name: "webhook " + s.Method + " " + s.URL.String(), Answer: s.Timeout,
		Handed:     "which the target gets as Idempotency-Key, Semel-Attempt and Semel-Token and can refuse by",
		Exceptions: []string{"a target that has the effect but answers with a retried status, such as 5xx, gets the request again, with the same key"},
	}
}

// Open implements config.Sink.
func (s *Sink) Open(_ context.Context, env *config.Env) (pipeline.Sink, error) {
	opts := &webhook.Options{
		URL: s.URL.Reveal(), Method: s.Method, Headers: http.Header{}, Timeout: s.Timeout,
		Allowed: s.AllowPrivate, Parallel: env.Pipeline.Parallel, Pipeline: env.Pipeline.Name,
		Success: s.Success, Retry: s.Retry, Forward: s.Forward, Redact: env.File.Redact,
	}
	for _, h := range s.Headers {
		opts.Headers.Add(h.Name, h.Value.Reveal())
	}
	var err error
	if opts.TLS, err = s.TLS.Config(); err != nil {
		return nil, err
	}
	return config.AsSink(webhook.New(opts))
}

func webhookURL(v schema.Value, target *schema.Secret) {
	v.Target(target)
	text := target.Reveal()
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || strings.HasPrefix(target.String(), schema.HiddenText) {
		v.Wrong("not an address of a target: write https://host/path")
		*target = schema.Secret{}
	}
}

// readHeaders reads header names and secret values.
func readHeaders(v schema.Value, target *[]Header) {
	entries, _ := v.Entries()
	for _, e := range entries {
		if problem := ofHeaderName(e.Name); problem != "" {
			v.WrongAt(e.At, "%s: %s", v.Path, problem)
			continue
		}
		h := Header{Name: e.Name}
		value := v.Value(e.Value, schema.Within(v.Path, e.Name))
		if isCredential(e.Name) {
			value.Secret(&h.Value)
		} else {
			value.Unshown(&h.Value)
		}
		if strings.ContainsAny(h.Value.Reveal(), "\r\n\x00") {
			v.WrongAt(e.At, "%s: a header value must be one line", schema.Within(v.Path, e.Name))
		}
		*target = append(*target, h)
	}
}

// isCredential reports whether the value of a header is surely a secret.
func isCredential(header string) bool {
	header = strings.ToLower(header)
	return slices.ContainsFunc([]string{"auth", "cookie", "token", "secret", "password", "api-key", "apikey"}, func(part string) bool { return strings.Contains(header, part) })
}

// forwarded reads the name of a message header that is sent on.
func forwarded(v schema.Value, target *[]string) {
	var name string
	v.Text(&name)
	if name == "" {
		return
	}
	if problem := ofHeaderName(name); problem != "" {
		v.Wrong("%s", problem)
		return
	}
	*target = append(*target, name)
}

// ofHeaderName says why a header cannot be set, or returns "" if it can.
func ofHeaderName(name string) string {
	switch strings.ToLower(name) {
	case "connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade":
		return name + " belongs to the connection: leave it out"
	case "idempotency-key", "semel-attempt", "semel-token", "semel-scope", "semel-redrive", "semel-pipeline":
		return name + " is written by the sink itself: leave it out"
	}
	if !isHeaderName(name) {
		return "this is not a header name"
	}
	return ""
}

// checkStatuses refuses a retry after a status that means success.
func (s *Sink) checkStatuses(there schema.Members) {
	for _, status := range s.Retry {
		if status < 300 || slices.Contains(s.Success, status) {
			there["retry"].Wrong("%d means success: leave it out", status)
			return
		}
	}
}

func isHeaderName(name string) bool {
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != ""
}

// networks reads true (all networks), false, or a list.
func networks(v schema.Value, target *[]netip.Prefix) {
	if !v.IsList() {
		all := false
		if v.Truth(&all); all {
			*target = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		}
		return
	}
	v.List(func(element schema.Value) {
		schema.Quantity(element, new(netip.Prefix), "a network", func(text string) (netip.Prefix, error) {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				address, addressErr := netip.ParseAddr(text)
				if addressErr != nil {
					return prefix, errors.New("not a network: write it like 10.0.0.0/8")
				}
				prefix = netip.PrefixFrom(address, address.BitLen())
			}
			if a := prefix.Addr(); a.Is4In6() && prefix.Bits() >= 96 { // IPv4 addresses are compared as IPv4
				prefix = netip.PrefixFrom(a.Unmap(), prefix.Bits()-96)
			}
			*target = append(*target, prefix.Masked())
			return prefix, nil
		})
	})
}

// statusesField is a list of 404, 4xx and 400-409.
func statusesField(name string, target *[]int, doc string) schema.Field {
	return schema.ListField(name, schema.Form{Scalar: schema.ScalarStatus}, func(v schema.Value) {
		v.List(func(element schema.Value) {
			var statuses []int
			schema.Quantity(element, &statuses, "a status", parseStatuses)
			*target = append(*target, statuses...)
		})
	}, doc)
}

func parseStatuses(text string) ([]int, error) {
	low, high := text, text
	if class, ok := strings.CutSuffix(strings.ToLower(text), "xx"); ok && len(class) == 1 {
		low, high = class+"00", class+"99"
	} else if from, to, ok := strings.Cut(text, "-"); ok {
		low, high = from, to
	}
	l, lowErr := strconv.Atoi(low)
	h, highErr := strconv.Atoi(high)
	if lowErr != nil || highErr != nil || l < 200 || h > 599 || l > h {
		return nil, errors.New("not a status: write 404, 400-409 or 4xx")
	}
	var list []int
	for status := l; status <= h; status++ {
		list = append(list, status)
	}
	return list, nil
}
