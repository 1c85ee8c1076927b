package config

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// Risk is what a finding costs a pipeline's promise. Both may be.
type Risk uint8

const (
	// Loss: a message may have no effect.
	Loss Risk = 1 << iota
	// Repeat: an effect may happen twice.
	Repeat
	// NoRisk: neither.
	NoRisk Risk = 0
)

// String returns the risk's name, "" for none.
func (r Risk) String() string {
	return [...]string{"", "loss", "repeat", "loss and repeat"}[r&(Loss|Repeat)]
}

// Finding is one thing that Lint found in a file that can be read. Its Subject
// is the path of the field.
type Finding struct {
	semel.Finding
	Place schema.Place
	// Pipeline is the name of the pipeline it belongs to, "" if to none.
	Pipeline string
	Risk     Risk
}

// Lint returns what can be known to weaken the promise of pipelines without
// connecting, in the order of the file. Where one is Broken the pipeline cannot
// keep what it promises, and should not run.
func (f *File) Lint() []Finding {
	l := &linter{file: f}
	for _, s := range f.Stores {
		l.storeTLS(s)
	}
	for _, p := range f.Pipelines {
		l.pipeline = p
		l.mode = f.Mode(p)
		l.key()
		l.window()
		l.keys()
		l.policies()
		l.source()
		l.sink()
		l.times()
		l.ignored()
	}
	l.pipeline = nil
	l.between()
	l.admin()
	slices.SortStableFunc(l.found, func(a, b Finding) int {
		return cmp.Or(a.Place.Compare(b.Place), int(b.Severity)-int(a.Severity))
	})
	return l.found
}

// Refused returns what keeps a pipeline from running: findings that are Broken,
// as problems of the file.
func (f *File) Refused(pipeline string) []schema.Problem {
	var list []schema.Problem
	for _, x := range f.Lint() {
		if x.Severity == semel.Broken && x.Pipeline == pipeline {
			list = append(list, schema.Problem{Place: x.Place, Text: x.Subject + ": " + x.Found + ": " + x.Cost + ": " + x.Remedy})
		}
	}
	return list
}

type linter struct {
	file     *File
	pipeline *Pipeline // nil between pipelines
	mode     Mode
	found    []Finding
}

// at is a field of the pipeline that is looked at, or of the file.
func (l *linter) at(name string) string {
	if l.pipeline == nil {
		return name
	}
	return schema.Within("pipelines."+l.pipeline.Name, name)
}

// given reports whether the file has a field.
func (l *linter) given(path string) bool {
	_, ok := l.file.places[path]
	return ok
}

// place is where a field stands, or the nearest thing around it.
func (l *linter) place(path string) schema.Place {
	for {
		if at, ok := l.file.places[path]; ok {
			at.File = l.file.Name
			return at
		}
		before, _, ok := schema.CutLast(path, ".")
		if !ok {
			break
		}
		path = before
		if l.pipeline != nil && path == "pipelines."+l.pipeline.Name {
			return l.pipeline.At
		}
	}
	return schema.Place{File: l.file.Name}
}

func (l *linter) add(severity semel.Severity, risk Risk, path, found, cost, remedy string) {
	finding := Finding{
		Finding: semel.Finding{Severity: severity, Subject: path, Found: found, Cost: cost, Remedy: remedy},
		Place:   l.place(path), Risk: risk,
	}
	if l.pipeline != nil {
		finding.Pipeline = l.pipeline.Name
	}
	l.found = append(l.found, finding)
}

// deciding adds what a decision on a key costs. A pipeline that observes decides
// and loses nothing by it, yet.
func (l *linter) deciding(severity semel.Severity, risk Risk, path, found, cost, remedy string) {
	if l.pipeline.Observe && risk&Loss != 0 {
		risk, cost = risk&^Loss, "once it does not observe: "+cost
	}
	l.add(severity, risk, path, found, cost, remedy)
}

func (l *linter) notice(path, found, cost, remedy string) {
	l.add(semel.Notice, NoRisk, path, found, cost, remedy)
}

// times compares how long things may take.
func (l *linter) times() {
	p := l.pipeline
	w, ok := p.Sink.(*WebhookSink)
	if !ok {
		return
	}
	timeout := l.at("sink.webhook.timeout")
	if p.Lease < w.Timeout {
		l.add(semel.Warning, Repeat, l.at("lease"),
			fmt.Sprintf("%s, and one request may take %s", schema.Duration(p.Lease), schema.Duration(w.Timeout)),
			"a process that stalls, or does not reach the store, loses the key while its request is under way, and another sends it again",
			fmt.Sprintf("lease: %s or more, or a shorter timeout", schema.Duration(2*w.Timeout)))
	}
	if l.file.Shutdown < w.Timeout {
		l.add(semel.Warning, Repeat, timeout,
			fmt.Sprintf("%s, and shutdown is %s", schema.Duration(w.Timeout), schema.Duration(l.file.Shutdown)),
			"a request that is under way at the end of a drain is cut off: its outcome is unknown",
			fmt.Sprintf("shutdown: %s or more, or a shorter timeout", schema.Duration(w.Timeout+5*time.Second)))
	}
	if s, ok := p.Source.(*HTTPSource); ok && s.Wait < w.Timeout {
		l.notice(l.at("source.http.wait"), fmt.Sprintf("%s, and one request of the sink may take %s", schema.Duration(s.Wait), schema.Duration(w.Timeout)),
			"who sent the message is told to come again while it is under way", fmt.Sprintf("wait: %s or more", schema.Duration(w.Timeout)))
	}
}

// ignored names fields that mean nothing in the mode.
func (l *linter) ignored() {
	var names []string
	switch l.mode {
	case SourceIsSink:
		names = []string{"source.kafka.protocol", "source.kafka.max_poll", "key.fingerprint", "lease", "on_lease_expired", "on_mismatch", "on_store_error", "order", "parallel", "batch", "in_flight", "wait"}
	case SameTransaction, Checkpointed:
		names = []string{"lease", "on_lease_expired"}
	case Lossy:
		names = []string{"key.fingerprint", "lease", "on_late", "on_mismatch"}
	}
	if l.pipeline.Lossy && l.mode != Lossy {
		l.notice(l.at("lossy"), "true, and the store is no filter", "nothing is lost by it", "leave it out")
	}
	for _, name := range names {
		if l.given(l.at(name)) {
			l.notice(l.at(name), "it means nothing here", "the pipeline commits in "+l.mode.String()+", which needs no such setting", "leave it out")
		}
	}
	source, ok := l.pipeline.Source.(*KafkaSource)
	if at := l.at("source.kafka.session_timeout"); ok && l.mode != SourceIsSink && source.Protocol == "consumer" && l.given(at) {
		l.notice(at, "it means nothing here", "the broker divides the group, and says by its group.consumer.session.timeout.ms when a member is dead", "leave it out")
	}
}

// between looks at what pipelines have in common.
func (l *linter) between() {
	type space struct{ store, scope string }
	spaces := map[space]*Pipeline{}
	type member struct{ brokers, group, topic string }
	members := map[member]*Pipeline{}
	between := map[member]*Pipeline{} // without a group
	for _, p := range l.file.Pipelines {
		l.pipeline = p
		if p.Store.Name != "" {
			in := space{p.Store.Name, p.Key.Scope}
			if other, ok := spaces[in]; ok {
				l.add(semel.Warning, Loss, l.at("key.scope"), fmt.Sprintf("%s in store %s, as in pipeline %s", in.scope, in.store, other.Name),
					"a message that one of them processed is a duplicate for the other", "another scope, unless they are to share their keys")
			}
			spaces[in] = p
		}
		source, ok := p.Source.(*KafkaSource)
		if !ok {
			continue
		}
		for _, broker := range source.Brokers {
			m := member{broker, "", source.RepartitionTopic()}
			if other, ok := between[m]; ok && m.topic != "" && other != p {
				l.add(semel.Broken, Repeat, l.at("source.kafka.repartition"), m.topic+", as in pipeline "+other.Name, "each of the two decides what the other copied", "a topic of its own")
				break
			}
			between[m] = p
		}
		for _, topic := range source.Topics {
			for _, broker := range source.Brokers {
				m := member{broker, source.Group, topic}
				if other, ok := members[m]; ok && other != p {
					l.add(semel.Warning, Loss, l.at("source.kafka.group"), fmt.Sprintf("%s, which reads %s in pipeline %s too", m.group, m.topic, other.Name),
						"each of the two gets a part of the messages", "a group of its own")
					break
				}
				members[m] = p
			}
		}
	}
	l.pipeline = nil
}

// admin looks at the admin server.
func (l *linter) admin() {
	a := &l.file.Admin
	if a.Listen == "off" || isLoopback(hostOf(a.Listen)) {
		return
	}
	switch {
	case a.Auth == nil:
		l.add(semel.Broken, NoRisk, "admin.listen", a.Listen+", which others can reach, without auth", "whoever reaches it reads metrics, and what keeps pipelines from their work", "auth: { username, password }, or listen: 127.0.0.1:4195")
	case a.TLS == nil:
		l.add(semel.Warning, NoRisk, "admin.listen", a.Listen+", which others can reach, without tls", "passwords pass readable", "tls: { certificate, key }, or listen: 127.0.0.1:4195 behind a proxy that has it")
	}
}
