package page

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/schema"
)

// mostPartitions limits the partitions that a page shows.
const mostPartitions = 200

// pipelineData is what the page about a pipeline shows.
type pipelineData struct {
	Part       part
	Promise    *explain.Promise
	Drawing    *drawing
	Moments    []moment
	Failures   []moment
	Partitions []partitionRow
	More       int
	Settings   []fact // none for a person who is not logged in
	Findings   []finding
}

// partitionRow is the lag of a partition.
type partitionRow struct {
	Source    string
	Partition int32
	Lag       string
}

// findingOf is a finding of lint or doctor.
type finding struct{ Severity, Subject, Found, Cost, Remedy string }

// pipelinePage shows what a pipeline does and promises.
func pipelinePage(v *visit) error {
	spec, err := v.pipelineOf(v.r.URL.Query().Get("name"))
	if err != nil {
		return err
	}
	now := v.now(v.r.Context())
	d := &pipelineData{Promise: explain.Explain(v.Conf, spec)}
	for i := range now.Pipelines {
		s := &now.Pipelines[i]
		if s.Name != spec.Name {
			continue
		}
		d.Part = pipelinePart(v, now, s)
		for _, detail := range facts.Details(now, v.File) {
			if detail.Name == s.Name && (detail.Kind == facts.AboutPipeline || detail.Kind == facts.AboutParked) {
				d.Part.Notes = append(d.Part.Notes, detail.Text)
			}
		}
		for i := range s.Lags[:min(len(s.Lags), mostPartitions)] {
			at := &s.Lags[i]
			d.Partitions = append(d.Partitions, partitionRow{at.Source, at.Partition, facts.LagOf(at)})
		}
		d.More = len(s.Lags) - len(d.Partitions)
	}
	if d.Part.Name == "" {
		d.Part = part{Name: spec.Name, State: "not run by this process", Well: true}
	}
	d.Part.Link, d.Part.Promise = "", ""
	for _, c := range d.Promise.Crashes {
		m := moment{At: c.At, Then: c.Outcome()}
		if c.Failure {
			d.Failures = append(d.Failures, m)
			continue
		}
		m.Number = len(d.Moments) + 1
		d.Moments = append(d.Moments, m)
	}
	key := "no key"
	if spec.Key.Rule != nil {
		key = spec.Key.Rule.String()
	}
	d.Drawing = newDrawing([]box{{"source", d.Promise.From}, {"key", key}, {"store", spec.Store.Name}, {"sink", d.Promise.To}}, d.Moments)
	if v.who.Role > admin.Nobody {
		d.Settings = settings(v.Conf, spec)
		for _, x := range v.Conf.Lint() {
			if x.Pipeline == spec.Name && x.Severity >= doctor.Notice {
				d.Findings = append(d.Findings, findingOf(v, x.Finding))
			}
		}
	}
	return v.show(http.StatusOK, "pipeline", "Pipeline "+term.OneLine(spec.Name), d)
}

// findingOf returns a finding for people.
func findingOf(v *visit, f doctor.Finding) finding {
	plain := func(text string) string { return v.App.Redact(term.PlainText(term.JoinLines(text))) }
	return finding{f.Severity.String(), plain(f.Subject), plain(f.Found), plain(f.Cost), plain(f.Remedy)}
}

// settings are the settings of a pipeline. None of them can have a secret: what source and sink
// have is in their names, which explain prints too.
func settings(conf *config.File, p *config.Pipeline) (list []fact) {
	add := func(name, value string) {
		if value != "" {
			list = append(list, fact{name, value})
		}
	}
	number := func(name string, n int64) {
		if n != 0 {
			add(name, term.FormatCount(n))
		}
	}
	if p.Key.Rule != nil {
		add("key.id", p.Key.Rule.String())
	}
	add("key.scope", p.Key.Scope)
	add("key.on_missing", p.Key.OnMissing)
	add("filter", p.Filter)
	add("map", p.Map)
	add("store", p.Store.Name)
	add("window", schema.Duration(p.Window))
	if p.Lease > 0 {
		add("lease", schema.Duration(p.Lease))
	}
	add("on_lease_expired", p.OnLeaseExpired)
	add("on_late", p.OnLate)
	add("on_mismatch", p.OnMismatch)
	add("on_store_error", p.OnStoreError)
	number("on_failure.attempts", int64(p.OnFailure.Attempts))
	add("order", p.Order)
	number("parallel", int64(p.Parallel))
	number("batch", p.Batch)
	number("in_flight.max", p.InFlight.Max)
	if p.InFlight.Bytes > 0 {
		add("in_flight.bytes", term.FormatBytes(p.InFlight.Bytes))
	}
	add("parked.path", p.Parked.Path)
	add("parked.store", p.Parked.Store.Name)
	add("parked.topic", p.Parked.Topic)
	if p.Observe {
		add("observe", "true: it delivers every message")
	}
	add("commits by", conf.Mode(p).String())
	return list
}

// storeData is what the page about a store shows.
type storeData struct {
	Part   part
	Layers []fact
	// Windows are the configured windows of the pipelines.
	Windows []fact
	// Examined: doctor was asked for.
	Examined bool
	Findings []finding
	Failed   string
	MayAsk   bool
}

// storePage shows what a store holds.
func storePage(v *visit) error { return showStore(v, v.r.URL.Query(), false) }

// doctorPage shows what a store holds, and its problems.
func doctorPage(v *visit) error { return showStore(v, v.r.PostForm, true) }

func showStore(v *visit, form url.Values, examine bool) error {
	spec, ok := v.Conf.Store(form.Get("name"))
	if !ok {
		return refuse(http.StatusNotFound, "there is no store %q: %s", form.Get("name"), schema.OneOf(form.Get("name"), v.Conf.StoreNames()))
	}
	now := v.now(v.r.Context())
	d := &storeData{MayAsk: v.operates(), Part: part{Name: spec.Name, State: "not open in this process", Well: true, Facts: []fact{{"kind", spec.Spec.Kind()}}}}
	for i := range now.Stores {
		if s := &now.Stores[i]; s.Name == spec.Name {
			d.Part = storePart(v, now, s)
			for _, detail := range facts.Details(now, v.File) {
				if detail.Name == s.Name && (detail.Kind == facts.AboutStore || detail.Kind == facts.AboutUnknown) {
					d.Part.Notes = append(d.Part.Notes, detail.Text)
				}
			}
		}
	}
	d.Part.Link = ""
	for i, layer := range v.Conf.Stack(spec.Name) {
		if name := layer.Name; name != spec.Name {
			d.Layers = append(d.Layers, fact{strconv.Itoa(i), name + " (" + layer.Spec.Kind() + ")"})
		}
	}
	for _, p := range v.Conf.PipelinesOn(spec.Name) {
		d.Windows = append(d.Windows, fact{"pipeline " + p.Name, schema.Duration(p.Window)})
	}
	if p, ok := v.Conf.ProxyOn(spec.Name); ok {
		d.Windows = append(d.Windows, fact{"proxy, scope " + p.Scope, schema.Duration(p.LongestWindow())})
	}
	if examine {
		d.Examined = true
		for _, layer := range v.Conf.Stack(spec.Name) {
			x := app.Examine(v.r.Context(), v.Conf, layer, v.App.Patience)
			for _, f := range x.Findings {
				d.Findings = append(d.Findings, findingOf(v, f))
			}
			if x.Err != nil {
				d.Failed = v.App.Redact(term.PlainText(term.JoinLines(fmt.Sprintf("%s was not checked: %s", layer.Name, x.Err))))
			}
		}
	}
	return v.show(http.StatusOK, "store", "Store "+term.OneLine(spec.Name), d)
}
