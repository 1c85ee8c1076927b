// Package idemcheck checks an implementation of the Idempotency-Key header from outside:
// it sends requests, and asks the service behind the implementation how often each one
// took effect. The implementation may be in any language.
//
// An [Upstream] is that service. The implementation forwards requests to it, with path,
// query and headers as they come. [Run] sends requests to the implementation, and asks the
// Upstream directly.
//
// The items are those of [Items]. Some are demanded: rules of
// draft-ietf-httpapi-idempotency-key-header-07, security, and that nothing takes effect
// twice. The others are practice, in which implementations differ for sound reasons. A
// profile with MCP has items of its own, about calls of tools.
package idemcheck

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel/httpidem"
)

// Options say what is checked. Targets and Probe are required. An item that needs to
// know a setting of the target does not apply if the setting is 0 here.
type Options struct {
	// Targets are addresses of the implementation. Several are processes that share
	// their keys.
	Targets []*url.URL
	// Probe is the address of the Upstream behind them.
	Probe *url.URL
	// Profile is the dialect of the target. The checks use what a client has to know:
	// the first of Headers, Methods, FirstSent, Marker, MaxKey and the two statuses. A
	// profile whose key is in the body has no header, and is refused. Defaults to that
	// of the IETF draft, and so does each of these fields.
	Profile httpidem.Profile
	// Caller and Other are headers that identify two callers, such as Authorization.
	// Nil says that the target does not tell callers apart.
	Caller, Other http.Header
	// Ignored is the name of a member of a JSON body that does not count when requests
	// are compared. Defaults to none.
	Ignored string
	// MaxBody is the longest request body in bytes that the target takes, and
	// MaxResponse the longest answer that it keeps. Both default to unknown.
	MaxBody, MaxResponse int64
	// Timeout is how long the target waits for the upstream. Defaults to unknown. Must
	// be at most 10 s to be checked.
	Timeout time.Duration
	// Lease is how long a claim of the target lasts if nothing extends it. Defaults to
	// unknown. Must be between 500 ms and 10 s to be checked.
	Lease time.Duration
	// Wait is how long the target lets a second request wait for the first one's
	// answer. Defaults to not at all.
	Wait time.Duration
	// Window is how long the target keeps answers. Defaults to unknown. Must be at most
	// 10 s to be checked.
	Window time.Duration
	// TLS configures connections to a target with https. Defaults to the system's roots.
	TLS *tls.Config
	// Done, if it is set, gets each item when it is checked.
	Done func(Item)
}

// Result is the result of an item.
type Result string

// The results of an item.
const (
	Passed        Result = "passed"
	Failed        Result = "failed"  // the item is demanded
	Differs       Result = "differs" // the item is practice
	NotApplicable Result = "n/a"
)

// Item is a checked item.
type Item struct {
	Number int    `json:"item"`
	Name   string `json:"name"`
	// Source is the authority: draft, vendor, security, choice or protocol.
	Source string `json:"source"`
	// Demanded: an implementation that does not meet the item is wrong.
	Demanded bool   `json:"demanded"`
	Result   Result `json:"result"`
	// Seen says what was seen instead, or why the item does not apply.
	Seen string `json:"seen,omitempty"`
}

// Report is what Run found.
type Report struct {
	Items []Item
}

// Missed returns the items that the target does not meet: the demanded ones, or all.
func (r *Report) Missed(all bool) []Item {
	return slices.DeleteFunc(slices.Clone(r.Items), func(i Item) bool {
		return i.Result != Failed && (!all || i.Result != Differs)
	})
}

// Run checks all items, one after the other. It blocks until they are done, or until ctx
// ends. It returns an error if the options are wrong, or if the Upstream cannot be asked
// or is not behind the targets.
func Run(ctx context.Context, opts Options) (*Report, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	r := newRunner(&opts)
	defer r.client.CloseIdleConnections()
	if err := r.meet(ctx); err != nil {
		return nil, err
	}
	report := &Report{}
	list := items()
	if opts.Profile.MCP {
		list = mcpItems()
	}
	for _, item := range list {
		done := item.Item
		c := &check{runner: r, id: newID()}
		if item.run == nil {
			done.Result, done.Seen = NotApplicable, item.not
		} else {
			item.run(c, ctx)
			done.Result, done.Seen = c.result(item.Demanded)
		}
		if err := ctx.Err(); err != nil {
			return report, fmt.Errorf("idemcheck: item %d: %w", item.Number, context.Cause(ctx))
		}
		report.Items = append(report.Items, done)
		if opts.Done != nil {
			opts.Done(done)
		}
	}
	return report, nil
}

func (o *Options) complete() error {
	p := &o.Profile
	base, _ := httpidem.ProfileNamed("ietf")
	if p.Headers == nil {
		p.Headers = base.Headers
	}
	if p.Methods == nil {
		p.Methods = base.Methods
	}
	p.Marker, p.MaxKey = cmp.Or(p.Marker, base.Marker), cmp.Or(p.MaxKey, base.MaxKey)
	p.MismatchStatus = cmp.Or(p.MismatchStatus, base.MismatchStatus)
	p.InFlightStatus = cmp.Or(p.InFlightStatus, base.InFlightStatus)
	if len(p.Headers) == 0 {
		return fmt.Errorf("idemcheck: Options.Profile: %s has its key in the body: set Headers to a header that the target takes", p.Name)
	}
	if o.Probe == nil || len(o.Targets) == 0 {
		return errors.New("idemcheck: Options: Targets and Probe are required")
	}
	for _, u := range append([]*url.URL{o.Probe}, o.Targets...) {
		if u == nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("idemcheck: Options: the address %v has no scheme http or https, or no host", u)
		}
	}
	return nil
}

// result returns the result of a check.
func (c *check) result(demanded bool) (Result, string) {
	switch {
	case len(c.missed) > 0 && demanded:
		return Failed, strings.Join(c.missed, "; ")
	case len(c.missed) > 0:
		return Differs, strings.Join(c.missed, "; ")
	case c.not != "":
		return NotApplicable, c.not
	}
	return Passed, ""
}
