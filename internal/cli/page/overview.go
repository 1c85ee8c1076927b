package page

import (
	"net/http"
	"net/url"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/schema"
)

// fact is a name with its value.
type fact struct{ Name, Value string }

// notice is something that needs a person, and the page that shows more.
type notice struct {
	facts.Detail
	Link, Label string
}

// overviewData is what the overview shows.
type overviewData struct {
	Time     time.Time
	Started  time.Time
	Notices  []notice
	Services []part
	// Pipelines and Stores are those of the process.
	Pipelines, Stores []part
}

// part is a pipeline, a store or a service on the overview.
type part struct {
	Name, Link string
	State      admin.State
	// Well: it needs no person.
	Well bool
	// Promise is what it promises, in one line.
	Promise string
	Facts   []fact
	Notes   []string
	Chart   *chart
}

// overviewPage shows what needs a person, the pipelines and the stores.
func overviewPage(v *visit) error {
	now := v.now(v.r.Context())
	page, err := v.overviews.get(now, v.who, func() ([]byte, error) { return v.render("overview", "Overview", overviewOf(v, now)) })
	if err == nil {
		v.answer(http.StatusOK, page)
	}
	return err
}

// overviewOf returns the facts that the overview shows of a status.
func overviewOf(v *visit, now *admin.Status) *overviewData {
	d := &overviewData{Time: now.Time, Started: now.Started}
	details := facts.Details(now, v.File)
	for _, detail := range details {
		if detail.Person {
			d.Notices = append(d.Notices, noticeOf(detail))
		}
	}
	if s := now.Service; s != nil {
		service := part{Name: s.Name, State: s.State, Well: s.State == admin.StateReady}
		for _, promise := range explain.Routes(v.Conf) {
			service.Notes = append(service.Notes, "route "+promise.Route+": "+promise.Line())
		}
		d.Services = append(d.Services, service)
	}
	for i := range now.Pipelines {
		p := pipelinePart(v, now, &now.Pipelines[i])
		said := false
		for _, detail := range details {
			of := detail.Kind == facts.AboutPipeline && detail.Name == p.Name
			said = said || of && detail.Person
			if of && !detail.Person {
				p.Notes = append(p.Notes, detail.Text)
			}
		}
		if !p.Well && !said {
			d.Notices = append(d.Notices, noticeOf(facts.Detail{Kind: facts.AboutPipeline, Name: p.Name, Text: p.Name + " is " + string(p.State)}))
		}
		d.Pipelines = append(d.Pipelines, p)
	}
	for i := range now.Stores {
		p := storePart(v, now, &now.Stores[i])
		for _, detail := range details {
			if detail.Kind == facts.AboutStore && detail.Name == p.Name && !detail.Person {
				p.Notes = append(p.Notes, detail.Text)
			}
		}
		d.Stores = append(d.Stores, p)
	}
	return d
}

// noticeOf adds the page that shows more to a detail.
func noticeOf(d facts.Detail) notice {
	n := notice{Detail: d}
	switch d.Kind {
	case facts.AboutParked:
		n.Link, n.Label = "parked?pipeline="+url.QueryEscape(d.Name), "parked messages of "+d.Name
	case facts.AboutUnknown:
		n.Link, n.Label = "unknown?store="+url.QueryEscape(d.Name), "unknown keys of "+d.Name
	case facts.AboutStore:
		n.Link, n.Label = "store?name="+url.QueryEscape(d.Name), "store "+d.Name
	case facts.AboutPipeline:
		n.Link, n.Label = "pipeline?name="+url.QueryEscape(d.Name), "pipeline "+d.Name
	}
	return n
}

// pipelinePart returns the facts that the overview shows of a pipeline.
func pipelinePart(v *visit, now *admin.Status, s *admin.PipelineStatus) part {
	p := part{
		Name: s.Name, State: s.State, Link: "pipeline?name=" + url.QueryEscape(s.Name),
		Well: facts.Well(s.State),
		Facts: []fact{
			{"rate", facts.Rate(s)}, {"fresh", facts.Share(s)}, {"lag", facts.Lagged(now, s)},
			{"time left", facts.Left(s)}, {"in flight", facts.InFlight(s)}, {"parked", facts.Waiting(now, s)}, {"last settled", facts.Ago(now.Time, s.LastSettled)},
		},
	}
	for _, of := range []struct {
		name string
		n    int
	}{{admin.StateRetrying, s.Retrying}, {admin.StateReadAhead, s.ReadAhead}} {
		if of.n > 0 {
			p.Facts = append(p.Facts, fact{of.name, term.FormatCount(int64(of.n))})
		}
	}
	claim, sink := facts.Work(s)
	p.Facts = append(p.Facts, fact{"claim takes", claim}, fact{"sink takes", sink})
	if spec, ok := v.Conf.Pipeline(s.Name); ok {
		promise := explain.Explain(v.Conf, spec)
		p.Promise = promise.Line()
		for i := range now.Stores {
			if of := &now.Stores[i]; of.Name == spec.Store.Name && holdsAlone(v, spec) {
				p.Facts = append(p.Facts, fact{"unknown keys", facts.Count(of.Unknown)})
			}
		}
	}
	if v.Process.Rates != nil {
		p.Chart = newChart(v.Process.Rates(s.Name))
	}
	return p
}

// holdsAlone reports whether a pipeline can have unknown keys, and nothing else can have some in its
// store, which counts those of all together.
func holdsAlone(v *visit, p *config.Pipeline) bool {
	_, proxied := v.Conf.ProxyOn(p.Store.Name)
	return p.OnLeaseExpired == "hold" && len(v.Conf.PipelinesOn(p.Store.Name)) == 1 && !proxied && !v.Conf.ServedOn(p.Store.Name)
}

// storePart returns the facts that the overview shows of a store.
func storePart(v *visit, now *admin.Status, s *admin.StoreStatus) part {
	p := part{
		Name: s.Name, State: s.State, Link: "store?name=" + url.QueryEscape(s.Name), Well: s.State == admin.StateReady,
		Facts: []fact{
			{"done", facts.Count(s.Done)}, {"claimed", facts.Count(s.Claimed)}, {"unknown", facts.Count(s.Unknown)}, {"measured", facts.Ago(now.Time, s.Measured)},
		},
	}
	if of, ok := v.Conf.Store(s.Name); ok {
		p.Facts = append([]fact{{"kind", of.Spec.Kind()}}, p.Facts...)
	}
	if window := windowOf(v, s.Name); window > 0 {
		p.Facts = append(p.Facts, fact{"window", schema.Duration(window)})
	}
	if s.OldestSeconds > 0 {
		p.Facts = append(p.Facts, fact{"oldest key", facts.Ago(now.Time, now.Time.Add(-time.Duration(s.OldestSeconds*float64(time.Second))))})
	}
	if last := facts.CleanUp(now, s); last != "" {
		p.Facts = append(p.Facts, fact{"clean-up", last})
	}
	for _, size := range []struct {
		name string
		n    int64
	}{{"on disk", s.DiskBytes}, {"in memory", s.MemoryBytes}} {
		if size.n > 0 {
			p.Facts = append(p.Facts, fact{size.name, term.FormatBytes(size.n)})
		}
	}
	return p
}

// windowOf returns the longest window of the pipelines and the proxy on a store, or 0.
func windowOf(v *visit, store string) (longest time.Duration) {
	for _, p := range v.Conf.PipelinesOn(store) {
		longest = max(longest, p.Window)
	}
	if p, ok := v.Conf.ProxyOn(store); ok {
		longest = max(longest, p.LongestWindow())
	}
	return min(longest, semel.Forever)
}
