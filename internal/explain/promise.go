package explain

import (
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// Promise is what a pipeline, a route of a proxy, or a server for callers promises.
type Promise struct {
	// Pipeline is the name of the pipeline, Route that of the route, and Service that of
	// another service. Two are empty.
	Pipeline string `json:"pipeline,omitempty"`
	Route    string `json:"route,omitempty"`
	Service  string `json:"service,omitempty"`
	// From, To and Keys describe its source, sink and store in a few words.
	From string `json:"from"`
	To   string `json:"to"`
	Keys string `json:"keys"`
	// Filter and Map are the expressions, or empty.
	Filter string `json:"filter,omitempty"`
	Map    string `json:"map,omitempty"`
	// Mode is how it commits.
	Mode string `json:"mode"`
	// Rules say what a route does with requests while nothing fails.
	Rules []string `json:"rules,omitempty"`
	// NothingLost says whether every message has its effect or is parked, and for a route
	// whether each kept answer has a request that the service answered so.
	// NoSecondEffect says whether no effect happens twice within the window.
	NothingLost    Answer `json:"nothing_lost"`
	NoSecondEffect Answer `json:"no_second_effect"`
	// Window is how long keys are remembered. It is empty if none exist.
	Window string `json:"window"`
	// Exceptions are cases that the promise cannot cover in any configuration.
	Exceptions []string `json:"exceptions"`
	// Crashes are the moments at which the process, or something it needs, can
	// fail.
	Crashes []Crash `json:"crashes"`
}

// Answer says whether a promise holds.
type Answer struct {
	// Holds is yes, unless, best effort or no.
	Holds string `json:"holds"`
	// Because lists the cases in which it does not hold.
	Because []string `json:"because,omitempty"`
}

// The values of Answer.Holds.
const (
	Yes        = "yes"
	Unless     = "unless"
	BestEffort = "best effort"
	No         = "no"
)

// Crash is a moment of failure and the resulting outcome of the message.
type Crash struct {
	At   string `json:"at"`
	Then string `json:"then"`
	// Client is what the client of a proxy sees.
	Client string `json:"client,omitempty"`
	// Failure: something other than the process fails.
	Failure bool `json:"failure,omitempty"`
}

// Explain returns the promise of a pipeline of the file.
func Explain(f *config.File, p *config.Pipeline) *Promise {
	e := &explainer{file: f, pipeline: p, mode: f.Mode(p), source: p.Source.About(p), sink: p.Sink.About()}
	if s, ok := f.Store(p.Store.Name); ok {
		e.store = s.Spec.About()
	}
	if d := f.Decider(p.Store.Name); d != nil {
		e.decider = d.Spec.About()
	}
	window := schema.Duration(p.Window)
	if e.mode == config.Direct || !p.Remembers() {
		window = ""
	}
	return &Promise{
		Pipeline: p.Name, From: e.source.Name, To: e.sink.Name, Keys: e.keys(), Filter: p.Filter, Map: p.Map, Mode: e.mode.String(), Window: window,
		NothingLost: e.nothingLost(), NoSecondEffect: e.noSecondEffect(), Exceptions: e.exceptions(), Crashes: e.crashes(),
	}
}

// title names the pipeline or route.
func (p *Promise) title() string {
	if p.Route != "" {
		return "route " + p.Route
	}
	return p.Pipeline + p.Service
}

// Outcome returns the outcome of the message, and what its client sees.
func (c *Crash) Outcome() string {
	if c.Client == "" {
		return c.Then
	}
	return c.Then + ". The client " + c.Client
}

// explainer composes a promise from the descriptions of the kinds and the commit
// mode.
type explainer struct {
	file     *config.File
	pipeline *config.Pipeline
	mode     config.Mode
	source   config.SourceAbout
	sink     config.SinkAbout
	// store is the pipeline's store. decider is the store below it that decides.
	store, decider config.StoreAbout
}

// keys says where keys are kept, and for how long.
func (e *explainer) keys() string {
	p := e.pipeline
	if e.mode == config.Direct {
		return e.rule() + ", for consumers"
	}
	where := "in Kafka"
	if e.mode == config.SourceIsSink {
		where += ", " + changelogs(p)
	}
	if _, ok := e.file.Store(p.Store.Name); ok {
		where = "in " + storeName(e.file, p.Store.Name)
	}
	return e.rule() + ", scope " + p.Key.Scope + ", " + where
}

// rule names the key rule, and the differences that it ignores.
func (e *explainer) rule() string {
	text := e.pipeline.RuleText()
	if ignored := e.pipeline.Key.Rule.Ignores(); len(ignored) > 0 {
		text += " (ignores " + strings.Join(ignored, ", and ") + ")"
	}
	return text
}

// storeName names a store, its kind, and the store below it that decides.
func storeName(f *config.File, name string) string {
	s, ok := f.Store(name)
	if !ok {
		return name
	}
	if d := f.Decider(name); d != nil && d != s {
		return s.Name + " (" + s.Spec.Kind() + " over " + d.Name + ", " + d.Spec.Kind() + ")"
	}
	return s.Name + " (" + s.Spec.Kind() + ")"
}

// changelogs names the key topics of a Kafka-to-Kafka pipeline.
func changelogs(p *config.Pipeline) string {
	return topics(p.Changelogs())
}

// topics names topics.
func topics(names []string) string {
	if len(names) == 1 {
		return "topic " + names[0]
	}
	return "topics " + strings.Join(names, ", ")
}

// because returns the lint findings that put a promise at risk.
func (e *explainer) because(risk config.Risk) (list []string, worst doctor.Severity) {
	for _, x := range e.file.Lint() {
		if x.Pipeline != e.pipeline.Name || x.Risk&risk == 0 {
			continue
		}
		field := strings.TrimPrefix(x.Subject, "pipelines."+e.pipeline.Name+".")
		list = append(list, x.Cost+" ("+field+": "+x.Found+")")
		worst = max(worst, x.Severity)
	}
	return list, worst
}

func (e *explainer) nothingLost() Answer {
	list, worst := e.because(config.Loss)
	switch {
	case list == nil:
		return Answer{Holds: Yes}
	case e.mode == config.Lossy && !e.pipeline.Observe || worst == doctor.Broken:
		return Answer{No, list}
	}
	return Answer{Unless, list}
}

func (e *explainer) noSecondEffect() Answer {
	list, worst := e.because(config.Repeat)
	list = append(e.gap(), list...)
	switch {
	case e.pipeline.Observe || worst == doctor.Broken:
		return Answer{No, list}
	case list == nil:
		return Answer{Holds: Yes}
	case e.decider.BestEffort:
		return Answer{BestEffort, list}
	}
	return Answer{Unless, list}
}

// gap describes what the commit mode cannot guarantee.
func (e *explainer) gap() []string {
	switch {
	case e.pipeline.Observe:
		return nil // every repeat has a second effect; a lint finding says so
	case e.mode == config.Lossy:
		list := []string{"the process dies after the effect, before the filter has the key: the effect repeats", "another process is given the same key at the same time: both deliver it, because a filter keeps no claims"}
		return append(list, e.decider.Gaps...)
	case e.mode == config.Direct:
		return []string{"the process dies, or loses the database, between the delivery and the removal of the row from the outbox: the message is delivered again, under the same id"}
	case e.mode != config.TwoPhase || e.pipeline.OnLeaseExpired == "hold":
		return nil
	}
	handed := ""
	if e.sink.Handed != "" {
		handed = ", " + e.sink.Handed
	}
	list := []string{"the process dies, or loses the store for longer than the lease, between the effect and the completion of its key: the effect repeats, with the same key and a higher " + e.grows() + handed}
	if e.sink.Answer > 0 {
		list = append(list, "the target has the effect and its answer does not come within "+schema.Duration(e.sink.Answer)+": the effect repeats, with the same key and a higher attempt")
	}
	return list
}

// grows names the values that are higher in a repetition after a crash.
func (e *explainer) grows() string {
	if e.decider.ClaimsEnd {
		return "token"
	}
	return "attempt and token"
}

// forgets says how long the store remembers the attempt count of a key.
func (e *explainer) forgets() string {
	if e.decider.ClaimsEnd {
		return "claims end with the process: a repeat after its crash is attempt 1 again, and only its token differs"
	}
	return "the attempt count of a key is remembered for an hour after its lease ended: a later repeat may be attempt 1 again, and only its token differs"
}

// exceptions are limits that no setting of the pipeline removes.
func (e *explainer) exceptions() []string {
	window := "a message that comes again after its key was forgotten has its effect again: the window is " + schema.Duration(e.pipeline.Window)
	if e.pipeline.Window == semel.Forever || e.mode == config.Direct || !e.pipeline.Remembers() {
		window = ""
	}
	list := e.pipeline.Unwrap.Exceptions(e.pipeline.Key.Rule)
	switch e.mode {
	case config.SameTransaction:
		list = append(list, "failover to an asynchronous replica forgets what was not yet copied, key and row together; synchronous_commit=off forgets the last moments before a crash: semel doctor looks for both")
	case config.Checkpointed:
		list = append(list, "loss of the disk")
	case config.SourceIsSink:
		list = append(list, "it holds for readers of the output with isolation read_committed", "with brokers without transaction.version 2 (before Kafka 4.0) a commit that is delayed on its way may end a later transaction", "effects outside of Kafka")
		if t := &e.pipeline.Transaction; t.Time == "event" && e.pipeline.OnLate == "run" {
			list = append(list, "a record that is behind the newest of its partition by more than the grace of "+schema.Duration(t.Grace)+" is late, and is delivered (on_late: run): a late duplicate may be delivered again if it is behind by more than window and grace, because its key was forgotten")
		}
		if agg := e.pipeline.Aggregate; agg != nil && e.source.Repartition != "" {
			list = append(list, "duplicates with different group keys ("+agg.By.String()+") are not found, because they may be in different partitions: each counts")
		} else if agg != nil {
			list = append(list, "records of one group key ("+agg.By.String()+") in several partitions have a result in each: the start checks a sample for them; a repartition stage, repartition: true of the source, brings them together")
		}
		for _, t := range e.pipeline.Tables {
			if t.History == 0 {
				list = append(list, "a record is joined with the newest row of table "+t.Name+" that was read: if it is read again after a crash, the row may be a newer one")
			}
			if t.Local {
				list = append(list, "a row of table "+t.Name+" in another partition than its record is missing: the pipeline ends if it finds the row in its other partitions; write both topics with the key of the row as record key")
			}
		}
		sampled := "the start checks a sample for them; "
		if e.pipeline.Key.Rule.String() == "record-key" {
			sampled = "" // producers place them
		}
		if k := e.pipeline.Key.Keep; k != nil && e.source.Repartition == "" {
			list = append(list, "records of one key in several partitions are not compared, and each partition keeps one: "+sampled+"a repartition stage, repartition: true of the source, brings them together")
		}
		if e.source.Repartition != "" {
			by, keys := "key", "keys"
			if e.pipeline.Aggregate != nil {
				by, keys = "group key", "group keys"
			}
			list = append(list, "records keep their order by "+by+", not by record key: records of one record key with several "+keys+" go to several partitions")
		} else if e.pipeline.Key.Keep == nil && sampled != "" {
			list = append(list, "duplicates in several partitions are not found: "+sampled+"a repartition stage, repartition: true of the source, brings them together")
		}
	case config.Lossy:
		if e.pipeline.Observe {
			break
		}
		list = []string{"the dropped messages cannot be listed: a filter does not know its errors, and the metrics count a loss as a duplicate", "the filter remembers a key for up to half of its window longer than that, and drops messages in that time too"}
	case config.TwoPhase:
		switch {
		case e.pipeline.Observe:
		case e.pipeline.OnLeaseExpired == "hold":
			list = append(list, "a key whose outcome is unknown has no effect and no second one until an operator resolves it: semel keys resolve")
		default:
			list = append(list, e.forgets())
		}
		list = append(list, e.decider.Exceptions...)
	}
	if missing := e.pipeline.Key.OnMissing; e.pipeline.Observe && missing != "pass" && missing != "hash" {
		list = append(list, "a message without a key is not delivered, although the pipeline observes: on_missing: "+missing)
	}
	if e.pipeline.Filter != "" && e.mode != config.Direct && !e.pipeline.Observe {
		list = append(list, "the key of a message that the filter leaves out is remembered: after a change of the filter, the message is not delivered if it comes again within the window")
	}
	list = append(list, e.sink.Exceptions...)
	if e.sink.Route != nil {
		list = append(list, "a message whose target is not allowed, or does not exist, fails by itself: it is retried, and after its last attempt on_failure applies")
	}
	list = append(list, e.source.Exceptions...)
	if window != "" {
		list = append(list, window)
	}
	return list
}

// Line says what it promises in one line.
func (p *Promise) Line() string {
	return "nothing lost: " + p.NothingLost.Holds + "; no second effect: " + p.NoSecondEffect.Holds + "; commits by " + p.Mode
}
