package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Risk is how a finding weakens a pipeline's promise. Both bits may be set.
type Risk uint8

const (
	// Loss: a message may have no effect.
	Loss Risk = 1 << iota
	// Repeat: an effect may happen twice.
	Repeat
	// NoRisk: neither.
	NoRisk Risk = 0
)

// String returns the risk's name, or "" for NoRisk.
func (r Risk) String() string {
	return [...]string{"", "loss", "repeat", "loss and repeat"}[r&(Loss|Repeat)]
}

// Finding is one result of Lint for a valid file. Its Subject is the path of the
// field.
type Finding struct {
	doctor.Finding
	Place schema.Place
	// Pipeline is the name of the pipeline, or "" if the finding belongs to none.
	Pipeline string
	Risk     Risk
}

// Lint returns everything that weakens the promise of pipelines and can be found
// without a connection, in the order of the file. A pipeline with a Broken
// finding cannot keep its promise and should not run.
func (f *File) Lint() []Finding {
	l := &Linter{File: f}
	for _, s := range f.Stores {
		s.Spec.Lint(l, s)
	}
	for _, p := range f.Pipelines {
		l.Pipeline = p
		l.Mode = f.Mode(p)
		l.key()
		l.values()
		l.window()
		l.keys()
		l.policies()
		l.parked()
		p.Source.Lint(l)
		p.Sink.Lint(l)
		l.duplicates()
		l.ignored()
	}
	l.Pipeline = nil
	l.proxy()
	l.serve()
	l.between()
	l.admin()
	l.secrets()
	slices.SortStableFunc(l.found, func(a, b Finding) int {
		return cmp.Or(a.Place.Compare(b.Place), int(b.Severity)-int(a.Severity))
	})
	return l.found
}

// TwoWaysOut says what to do if the scope of a pipeline belongs to another rule or
// pipeline. It follows a semel.ScopeError.
const TwoWaysOut = " with key.scope; or, if equal ids mean the same message, write key.same_scope: true"

// ForeignScope is the finding about a pipeline whose scope belongs to another rule or
// pipeline.
func (f *File) ForeignScope(p *Pipeline, err *semel.ScopeError) Finding {
	l := &Linter{File: f, Pipeline: p}
	const remedy = "use another scope"
	found := strings.TrimSuffix(strings.TrimPrefix(err.Error(), "semel: "), ": "+remedy)
	l.Add(doctor.Broken, NoRisk, l.At("key.scope"), found, "run does not start", remedy+TwoWaysOut)
	return l.found[0]
}

// Refused returns the Broken findings that keep a pipeline from running, as
// problems of the file.
func (f *File) Refused(pipeline string) []schema.Problem {
	var list []schema.Problem
	for _, x := range f.Lint() {
		if x.Severity == doctor.Broken && x.Pipeline == pipeline {
			list = append(list, schema.Problem{Place: x.Place, Text: x.Subject + ": " + x.Found + ": " + x.Cost + ": " + x.Remedy})
		}
	}
	return list
}

// Linter collects findings. Pipeline and Mode are those of the pipeline that is
// being checked. Pipeline is nil during checks across pipelines.
type Linter struct {
	File     *File
	Pipeline *Pipeline
	Mode     Mode
	found    []Finding
}

// At returns the path of a field of the current pipeline, or of the file.
func (l *Linter) At(name string) string {
	if l.Pipeline == nil {
		return name
	}
	return schema.Within("pipelines."+l.Pipeline.Name, name)
}

// Given reports whether the file sets a field.
func (l *Linter) Given(path string) bool {
	_, ok := l.File.places[path]
	return ok
}

// place returns the place of a field, or of the closest enclosing field.
func (l *Linter) place(path string) schema.Place {
	for {
		if at, ok := l.File.places[path]; ok {
			at.File = l.File.Name
			return at
		}
		before, _, ok := schema.CutLast(path, ".")
		if !ok {
			break
		}
		path = before
		if l.Pipeline != nil && path == "pipelines."+l.Pipeline.Name {
			return l.Pipeline.At
		}
	}
	return schema.Place{File: l.File.Name}
}

// Add adds a finding about the field at path.
func (l *Linter) Add(severity doctor.Severity, risk Risk, path, found, cost, remedy string) {
	finding := Finding{
		Finding: doctor.Finding{Severity: severity, Subject: path, Found: found, Cost: cost, Remedy: remedy},
		Place:   l.place(path), Risk: risk,
	}
	if l.Pipeline != nil {
		finding.Pipeline = l.Pipeline.Name
	}
	l.found = append(l.found, finding)
}

// Deciding adds a finding about the cost of a decision on a key. A pipeline in
// observe mode loses nothing by its decisions yet.
func (l *Linter) Deciding(severity doctor.Severity, risk Risk, path, found, cost, remedy string) {
	if l.Pipeline.Observe && risk&Loss != 0 {
		risk, cost = risk&^Loss, "without observe: "+cost
	}
	l.Add(severity, risk, path, found, cost, remedy)
}

// Notice adds a finding that does not weaken the promise.
func (l *Linter) Notice(path, found, cost, remedy string) {
	l.Add(doctor.Notice, NoRisk, path, found, cost, remedy)
}

// ignored reports fields that have no effect in the mode.
func (l *Linter) ignored() {
	var names []string
	switch l.Mode {
	case SourceIsSink:
		names = []string{"lease", "on_lease_expired", "on_mismatch", "on_store_error", "order", "batch"}
	case SameTransaction, Checkpointed:
		names = []string{"lease", "on_lease_expired"}
	case Lossy:
		names = []string{"lease", "on_late", "on_mismatch"}
	case Direct:
		names = []string{"window", "on_lease_expired", "on_late", "on_mismatch", "on_store_error", "observe"}
	}
	if l.Pipeline.Lossy && l.Mode != Lossy {
		l.Notice(l.At("lossy"), "true, but the store is not a filter", "it has no effect", "leave it out")
	}
	for _, name := range names {
		l.Ignored(name)
	}
}

// Ignored reports a field of the pipeline that has no effect in its mode, if the
// file sets it.
func (l *Linter) Ignored(name string) {
	if l.Given(l.At(name)) {
		l.Notice(l.At(name), "it has no effect here", "the pipeline commits in "+l.Mode.String()+", which does not use it", "leave it out")
	}
}

// between checks what pipelines share.
func (l *Linter) between() {
	type space struct{ store, scope string }
	spaces := map[space]*Pipeline{}
	for _, p := range l.File.Pipelines {
		l.Pipeline = p
		if p.Store.Name != "" {
			in := space{p.Store.Name, p.Key.Scope}
			other := spaces[in]
			shared := other != nil && (p.Key.SameScope || other.Key.SameScope)
			switch {
			case other == nil:
			case shared || p.Lossy || other.Lossy:
				l.Add(doctor.Warning, Loss, l.At("key.scope"), fmt.Sprintf("%s in store %s, as in pipeline %s", in.scope, in.store, other.Name),
					"a message that one of them processed is a duplicate for the other", "use another scope, unless they should share their keys")
			case p.RuleText() != other.RuleText():
				l.Add(doctor.Broken, Loss, l.At("key.scope"), fmt.Sprintf("%s in store %s, as in pipeline %s, whose key rule is %s", in.scope, in.store, other.Name, other.RuleText()),
					"ids of the two rules may be equal by chance, so only the pipeline that was first in the scope starts", "use another scope, or same_scope: true if both rules find the same ids")
			default:
				l.Add(doctor.Broken, Loss, l.At("key.scope"), fmt.Sprintf("%s in store %s, as in pipeline %s", in.scope, in.store, other.Name),
					"a message that one of them processed is a duplicate for the other, so only the pipeline that was first in the scope starts", "use another scope, or same_scope: true if they should share their keys")
			}
			spaces[in] = p
		}
	}
	l.Pipeline = nil
}

// admin checks the admin server.
func (l *Linter) admin() {
	a := &l.File.Admin
	if a.Listen == "" || a.Listen == "off" || IsLoopback(HostOf(a.Listen)) {
		return
	}
	switch {
	case a.Auth == nil:
		l.Add(doctor.Broken, NoRisk, "admin.listen", a.Listen+", which other machines can reach, without auth", "anyone who can connect can read the metrics and the state of the pipelines", "set auth: { username, password }, or listen: 127.0.0.1:4195")
	case a.TLS == nil:
		l.Add(doctor.Warning, NoRisk, "admin.listen", a.Listen+", which other machines can reach, without tls", "passwords are sent in clear text", "set tls: { certificate, key }, or listen: 127.0.0.1:4195 behind a proxy with TLS")
	}
}

// secrets reports secrets that others than the user of the program may read.
func (l *Linter) secrets() {
	for _, x := range l.File.bare {
		found, cost, remedy := "a secret as plain text", "all who read the file, its backups or its history have it", "write ${env:NAME} or ${file:PATH} instead"
		if x.File != "" {
			found = fmt.Sprintf("${file:%s}, which has mode %04o", x.File, x.Mode)
			cost, remedy = "other users of this machine can read the secret", "chmod 600 "+x.File
		}
		x.At.File = l.File.Name
		finding := Finding{Finding: doctor.Finding{Severity: doctor.Warning, Subject: x.Path, Found: found, Cost: cost, Remedy: remedy}, Place: x.At}
		if section, name, _ := strings.Cut(x.Path, "."); section == "pipelines" {
			finding.Pipeline, _, _ = strings.Cut(name, ".")
		}
		l.found = append(l.found, finding)
	}
}

// policies checks the failure policies.
func (l *Linter) policies() {
	p := l.Pipeline
	if p.OnFailure.Then == pipeline.Drop {
		l.Add(doctor.Warning, Loss, l.At("on_failure.then"), "drop", "a message whose last attempt failed is lost", "write then: park")
	}
	if p.OnStoreError == "pass" {
		l.Add(doctor.Warning, Repeat, l.At("on_store_error"), "pass", "while the store does not answer, every repeat has its effect again", "write on_store_error: stop")
	}
	if p.Observe {
		l.Add(doctor.Notice, Repeat, l.At("observe"), "true", "duplicates, late messages and mismatches are delivered: every repeat has its effect again", "remove it when you have seen enough")
	}
}

// parked checks whether parked messages expire, and that instances which share a
// source and the keys also share the parked messages.
func (l *Linter) parked() {
	p := l.Pipeline
	if age := p.Parked.MaxAge; age > 0 {
		l.Add(doctor.Warning, Loss, l.At("parked.max_age"), schema.Duration(age), "a parked message that an operator does not settle within "+schema.Duration(age)+" is lost", "leave max_age out, or make sure that SemelParkedWaiting reaches an operator")
	}
	decider := l.File.Decider(p.Store.Name)
	if p.Parked.Path == "" || decider == nil || !p.Source.About(p).Shared || !decider.Spec.About().Shared {
		return
	}
	l.Notice(l.At("parked"), "the directory "+p.Parked.Path,
		"if one of several instances dies after it parked a message, another instance does not see that directory: it processes the message, and may park it a second time",
		"nothing for one instance, or if all instances share the directory on one machine; otherwise write parked: { store: NAME } with a store in PostgreSQL, or parked: { topic: NAME }")
}

// HostOf returns the host of a listen address.
func HostOf(listen string) string {
	host, _, _ := schema.CutLast(listen, ":")
	return strings.Trim(host, "[]")
}

// IsLoopback reports whether a host is this machine only, unreachable from
// others.
func IsLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}
