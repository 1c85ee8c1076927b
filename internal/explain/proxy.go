package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// Routes returns the promise of each route of the file's proxy, in the order of the file.
// The last one is for the requests of no other route. Without a proxy the list is empty.
func Routes(f *config.File) (all []*Promise) {
	if f.Proxy == nil {
		return nil
	}
	rest := f.Proxy.Route
	rest.Name = config.DefaultRoute
	for _, r := range append(slices.Clone(f.Proxy.Routes), &rest) {
		all = append(all, newProxied(f, r).promise())
	}
	return all
}

// proxied composes the promise of a route.
type proxied struct {
	file      *config.File
	route     *config.Route
	decider   config.StoreAbout
	hold      bool // on_lease_expired
	forgetful bool // all keys are lost with the process

	// What the profile says.
	methods, carriers, release []string
	required, strict           bool
	another, inFlight          string // the statuses
	firstSent, calls           bool
	tools                      []string
	lease, timeout, window     string
}

func newProxied(f *config.File, r *config.Route) *proxied {
	e := &proxied{file: f, route: r, hold: r.OnLeaseExpired != "retry"}
	if d := f.Decider(f.Proxy.Store.Name); d != nil {
		e.decider = d.Spec.About()
		e.forgetful = e.decider.NotLast != ""
	}
	p := r.Rules()
	e.methods, e.carriers, e.release, e.required, e.strict = p.Methods, p.Headers, p.Release, p.Required, p.Strict
	if e.calls, e.tools = p.MCP, p.Tools; e.calls {
		e.carriers = append(e.carriers, "member "+p.KeyPointer+" of calls of tools")
	} else if p.KeyPointer != "" {
		e.carriers = append(e.carriers, "member "+p.KeyPointer+" of the body")
	}
	e.another, e.inFlight, e.firstSent = fmt.Sprint(p.MismatchStatus), fmt.Sprint(p.InFlightStatus), p.FirstSent != ""
	e.lease, e.timeout, e.window = schema.Duration(r.LeaseOr()), schema.Duration(r.UpstreamTimeoutOr()), schema.Duration(r.WindowOr())
	return e
}

func (e *proxied) promise() *Promise {
	r := e.route
	p := &Promise{
		Route: r.Name, From: "requests to " + e.file.Proxy.Listen + r.Path, To: "service " + r.Upstream, Mode: "claim, pass on, complete",
		NothingLost: Answer{Holds: Yes},
	}
	if len(e.methods) == 0 {
		p.Mode, p.Keys = "passes on", "none"
		p.NoSecondEffect = Answer{No, []string{"the route takes no keys: each request runs as often as it is sent (methods: [])"}}
		return p
	}
	p.Keys, p.Window = e.keys(), e.window
	p.NoSecondEffect, p.Rules, p.Exceptions, p.Crashes = e.noSecondEffect(), e.rules(), e.exceptions(), e.crashes()
	return p
}

// keys says where a key is in a request, and where it is kept.
func (e *proxied) keys() string {
	p := e.file.Proxy
	return strings.Join(e.carriers, " or ") + " of " + strings.Join(e.methods, ", ") + ", caller " + p.Caller.String() + ", scope " + p.Scope + ", in " + storeName(e.file, p.Store.Name)
}

// rules say what the route does with requests while nothing fails.
func (e *proxied) rules() []string {
	without := "a request without a key passes untouched, and runs as often as it is sent"
	if e.required {
		without = "a request without a key is refused with 400 /key-missing"
	}
	if e.calls {
		without = strings.ReplaceAll(without, "a request without a key", "a call without a key")
		if len(e.tools) > 0 {
			without = "a call of " + strings.Join(e.tools, ", ") + " without a key gets one from caller, tool and arguments; of other tools, " + without
		}
		without += "; initialize, lists and all other messages pass untouched"
	}
	waits := "gets " + e.inFlight + " /in-flight with Retry-After"
	if e.route.Wait > 0 {
		waits = "waits for its answer for up to " + schema.Duration(e.route.Wait) + ", and then " + waits
	}
	kept := "every answer is kept"
	if len(e.release) > 0 {
		kind := "status "
		if e.calls {
			kind = "status or JSON-RPC error "
		}
		kept += ", except those with " + kind + strings.Join(e.release, ", ") + ": they mean that the request took no effect, and its repetition runs"
	}
	forms := "keys with and without double quotes are accepted (RFC 9651)"
	if e.strict {
		forms = "only keys in double quotes are accepted (RFC 9651)"
	}
	list := []string{
		"profile " + e.route.ProfileOr() + "; " + forms, without, kept,
		"a repetition gets the kept answer; while the first request runs, it " + waits,
		"another request with the same key gets " + e.another + " /key-reused",
	}
	if e.calls {
		list = append(list, "to a call, the proxy answers with status 200 and a JSON-RPC error, whose code is the status that this page names; a kept answer gets the id of the repetition; of a stream, the response is kept")
	}
	return list
}

func (e *proxied) noSecondEffect() Answer {
	var list []string
	worst := doctor.Fine
	for _, x := range e.file.Lint() {
		field, ok := e.field(x.Subject)
		if !ok || x.Risk&config.Repeat == 0 {
			continue
		}
		list = append(list, x.Cost+" ("+field+": "+x.Found+")")
		worst = max(worst, x.Severity)
	}
	if slices.ContainsFunc(e.release, func(status string) bool { return status[0] == '5' }) {
		list = append(list, "the service takes the effect and answers with a status that says it did not: its repetition runs (release: "+strings.Join(e.release, ", ")+")")
	}
	switch {
	case list == nil:
		return Answer{Holds: Yes}
	case worst == doctor.Broken:
		return Answer{No, list}
	case e.decider.BestEffort:
		return Answer{BestEffort, list}
	}
	return Answer{Unless, list}
}

// field returns the field of a finding that weakens this route.
func (e *proxied) field(subject string) (string, bool) {
	field, ok := strings.CutPrefix(subject, "proxy.")
	if own, others := strings.CutPrefix(field, "routes."); others {
		return strings.CutPrefix(own, e.route.Name+".")
	}
	switch field { // a route may have its own value
	case "fail_open":
		ok = ok && e.route.FailOpen
	case "on_lease_expired":
		ok = ok && !e.hold
	}
	return field, ok
}

// exceptions are limits that no setting of the route removes.
func (e *proxied) exceptions() []string {
	list := []string{"a client that repeats a request with a new key has it run again"}
	switch {
	case e.hold:
		list = append(list, "a key whose outcome is unknown does not run again by itself, even if the service never got the request: semel keys resolve")
	default:
		list = append(list, "the service must bear a request that comes twice: after a crash, the proxy cannot know whether it took effect")
	}
	if len(e.tools) > 0 {
		list = append(list, "a second call of "+strings.Join(e.tools, ", ")+" without a key and with the same arguments gets the first result, even if another effect is meant")
	}
	list = append(list, e.decider.Exceptions...)
	switch {
	case e.route.WindowOr() == semel.Forever:
	case e.firstSent:
		list = append(list, "a request that was sent first longer ago than the window gets 412 /key-expired, and it is not known whether it ran")
	default:
		list = append(list, "a request that comes again after its key was forgotten runs again: the window is "+e.window)
	}
	return list
}

// crashes lists the moments in the life of a request at which the proxy can die, followed
// by what else can fail.
func (e *proxied) crashes() (list []Crash) {
	died := func(at, then, client string) { list = append(list, Crash{At: at, Then: then, Client: client}) }
	const cut = "gets no answer; its repetition "
	then, repetition := e.abandoned()
	died("the proxy dies before the claim", "nothing was sent, and no key is claimed", cut+"runs")
	died("the proxy dies after the claim, before a byte was sent", "nothing ran; "+then, cut+repetition)
	died("the proxy dies after a byte was sent, before the answer is kept", "the service may have taken the effect; "+then, "gets no whole answer, unless the store takes longer than 1s to keep it; its repetition "+repetition)
	if e.forgetful {
		died("the proxy dies after the answer is kept", "the answer is lost with the process", cut+"runs again")
	} else {
		died("the proxy dies after the answer is kept", "the key has its answer", "may get no whole answer; its repetition gets the kept answer")
	}
	failed := func(at, then, client string) {
		list = append(list, Crash{At: at, Then: then, Client: client, Failure: true})
	}
	unknown, again := "the key is unknown until an operator resolves it", "its repetition gets 409 /outcome-unknown"
	if !e.hold {
		unknown, again = "its claim ends, because on_lease_expired is retry", "its repetition runs again"
	}
	failed("the service cannot be reached", "no byte was sent, and the key is free again", "gets 502 /upstream-down; its repetition runs")
	failed("the service dies or resets the connection after a byte was sent", "the service may have taken the effect; "+unknown, "gets 502 /outcome-unknown, or a response that is cut off; "+again)
	failed("the service does not answer within "+e.timeout, "the proxy waits for 5m longer; an answer that comes is kept, and otherwise "+unknown, "gets 504 /outcome-unknown; its repetition gets "+e.inFlight+" /in-flight, and later the answer if there is one")
	unkept := "the answer is longer than max_response, is a stream or has trailers"
	if e.calls {
		unkept = "the answer is longer than max_response"
		failed("a stream ends without the response, also if its client can ask for the rest of it", "the tool may have taken the effect, or still work; "+unknown, "gets a JSON-RPC error, or asks for the rest; "+again)
	}
	failed(unkept, "the request took effect, and its answer is not kept", "gets the whole answer; its repetition gets 409 /response-not-kept")
	failed("the client leaves", "the request runs on, and its answer is kept", "gets the kept answer for its repetition")
	e.storeFails(failed, again)
	if e.decider.Shared {
		then, client := "the key is unknown; the answer of the stopped proxy is refused by its token", "gets 409 /outcome-unknown for its repetition"
		if !e.hold {
			then, client = "the request may run in another proxy at the same time; the answer of the stopped proxy is refused by its token", "has its repetition run again"
		}
		failed("a proxy is stopped for longer than the lease of "+e.lease, then, client)
	}
	return list
}

// abandoned says what becomes of a key whose proxy died, and of a repetition.
func (e *proxied) abandoned() (then, repetition string) {
	const resolve = "until an operator resolves it: semel keys resolve"
	first := "gets " + e.inFlight + " /in-flight until the lease ends, and then "
	switch {
	case e.forgetful:
		return "the key is lost with the process", "runs"
	case !e.hold:
		return "the claim lasts until its lease ends, at most " + e.lease, first + "runs"
	case e.decider.Directory != "":
		return "the key is unknown as soon as the proxy runs again, " + resolve, "gets 409 /outcome-unknown"
	}
	return "the claim lasts until its lease ends, at most " + e.lease + "; then the key is unknown " + resolve, first + "409 /outcome-unknown"
}

// storeFails adds what happens if the store does not answer.
func (e *proxied) storeFails(failed func(at, then, client string), again string) {
	if e.forgetful {
		return
	}
	if e.route.FailOpen {
		failed("the store does not answer at the claim", "the request is passed on without protection (fail_open)", "gets the answer, with Idempotency-Status: unprotected; its repetition runs again")
	} else {
		failed("the store does not answer at the claim", "nothing is sent", "gets 503 /store-unavailable with Retry-After; its repetition runs")
	}
	failed("the store fails before the answer is kept", "the proxy retries for the time of a lease, and the key stays claimed", "gets the answer of the service, up to 1s later; its repetition gets "+e.inFlight+" /in-flight, and then the kept answer. If the store stays away for longer, "+again)
}
