package explain

import (
	"strings"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// Served returns the promise of the section "serve", or nil if the file has none.
func Served(f *config.File) *Promise {
	s := f.Serve
	if s == nil {
		return nil
	}
	var about config.StoreAbout
	if d := f.Decider(s.Store.Name); d != nil {
		about = d.Spec.About()
	}
	forgetful := about.NotLast != ""
	p := &Promise{
		Service: config.ServeName, From: "calls to " + s.Address() + "/v1/", To: "the effects of the callers", Mode: "claim, the effect of the caller, complete",
		Keys: "scope and id of the caller, in " + storeName(f, s.Store.Name), Window: schema.Duration(s.WindowOr()),
		NothingLost: Answer{Holds: Yes},
		Rules: []string{
			"a claim that is sent again with its claim_id gets the same token",
			"complete, release and extend need the token of the claim; after another claim was granted they get 409 /stale-token",
			"a duplicate has a completion behind it",
		},
		Exceptions: []string{
			"a caller must not take its effect unless the decision is fresh, and must complete after it",
			"a caller that completes without its effect loses it",
			"a call that comes again after its key was forgotten takes effect again: the window is " + schema.Duration(s.WindowOr()) + " unless the completion says",
		},
	}
	p.Exceptions = append(p.Exceptions, about.Exceptions...)
	p.NoSecondEffect = servedOnce(f, about)
	lease, hold := schema.Duration(s.LeaseOr()), s.Holds()
	then := "when the lease of " + lease + " ends, the key is unknown until an operator resolves it"
	if !hold {
		then = "when the lease of " + lease + " ends, the next claim is granted with a higher attempt, and the effect may happen again"
	}
	add := func(at, then string, failure bool) {
		p.Crashes = append(p.Crashes, Crash{At: at, Then: then, Failure: failure})
	}
	add("the answer to any call is lost", "the caller sends the same call again, which recognises itself", true)
	add("the caller dies before its claim", "no key is claimed", true)
	add("the caller dies after its claim, before it completes", then, true)
	add("the caller is stopped for longer than its lease", then+"; its completion succeeds unless another claim was granted", true)
	if forgetful {
		add("the server dies", "every key is lost: calls in progress, and those that come again, take effect again", false)
	} else {
		add("the server dies", "keys, claims and leases survive; callers send their calls again until the server runs", false)
		add("the store does not answer", "calls get 503 /store-unavailable if nothing was changed, and 504 /outcome-unknown otherwise; both can be sent again", true)
	}
	return p
}

// servedOnce says whether no effect happens twice.
func servedOnce(f *config.File, about config.StoreAbout) Answer {
	var list []string
	worst := doctor.Fine
	for _, x := range f.Lint() {
		if field, ok := cutServe(x.Subject); ok && x.Risk&config.Repeat != 0 {
			list = append(list, x.Cost+" ("+field+": "+x.Found+")")
			worst = max(worst, x.Severity)
		}
	}
	switch {
	case list == nil:
		return Answer{Holds: Yes}
	case worst == doctor.Broken:
		return Answer{No, list}
	case about.BestEffort:
		return Answer{BestEffort, list}
	}
	return Answer{Unless, list}
}

func cutServe(subject string) (string, bool) { return strings.CutPrefix(subject, config.ServeName+".") }
