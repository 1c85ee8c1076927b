package config

import (
	"path/filepath"

	"github.com/semel-dev/semel/internal/schema"
)

// checkPipelines reports conflicts between pipelines, and between a pipeline and
// the stores.
func checkPipelines(r *schema.Document, f *File) {
	c := &Checker{Document: r, File: f}
	places := map[string]*Pipeline{}
	for _, p := range f.Pipelines { // before the checks, which compare pipelines
		if p.Parked == (Parked{}) {
			p.Parked = defaultParked(r, f, p)
		}
	}
	for _, p := range f.Pipelines {
		path := "pipelines." + p.Name
		if p.Store.Name != "" {
			c.storeOf(p.Store, path+".store")
		}
		sink := p.Sink.About()
		if sink.Store.Name != "" {
			c.database(sink.Store, path+".sink."+p.Sink.Kind()+".store")
		}
		if source := p.Source.About(p); source.Outbox.Name != "" {
			c.database(source.Outbox, path+".source."+p.Source.Kind()+".store")
		}
		if p.Parked.Store.Name != "" {
			c.database(p.Parked.Store, path+".parked.store")
		}
		if place := p.Sink.Kind() + "\x00" + sink.Place; sink.Place != "" {
			if other, ok := places[place]; ok {
				c.Report(p.At, path, "its sink writes the same %s as %s (line %d): give each pipeline its own", sink.PlaceName, other.Name, other.At.Line)
			}
			places[place] = p
		}
		if mode := f.Mode(p); p.OnStoreError == "pass" && mode != TwoPhase && mode != Lossy {
			c.Report(c.Places[path+".on_store_error"], path+".on_store_error", "pass is not possible, because the effect is written with the store (%s): write stop", mode)
		}
		p.Source.Check(c, p)
		p.Sink.Check(c, p)
	}
}

// defaultParked is where messages are parked by default.
func defaultParked(r *schema.Document, f *File, p *Pipeline) Parked {
	if source, ok := p.Source.(TransactionalSource); ok && f.Mode(p) == SourceIsSink && source.ParkedTopic() != "" {
		return Parked{Topic: source.ParkedTopic()}
	}
	return Parked{Path: filepath.Join(r.Dir, "semel-parked")}
}

// storeOf returns the store of the keys of a pipeline or proxy.
func (c *Checker) storeOf(r schema.Reference, path string) (*Store, bool) {
	s, ok := c.Find(r, path)
	if !ok {
		return nil, false
	}
	if stack, ok := c.File.LayerOf(r.Name); ok {
		c.Report(r.At, path, "%s is a layer of %s, which only copies the decisions of another store: write %s, or a separate store", r.Name, stack.Name, stack.Name)
	}
	return s, true
}

// database checks a reference to a store whose database is used.
func (c *Checker) database(r schema.Reference, path string) {
	s, ok := c.Find(r, path)
	if !ok {
		return
	}
	if _, ok := s.Spec.(Database); !ok && s.Spec.Kind() != "" {
		c.Report(r.At, path, "%s is %s: name a store of the kind postgres", r.Name, s.Spec.Kind())
	}
}

// Changelogs names the topics that hold the keys of a pipeline without a store.
// It returns nil if the pipeline has a store.
func (p *Pipeline) Changelogs() []string {
	if source, ok := p.Source.(TransactionalSource); ok && p.Store.Name == "" {
		return source.Changelogs(p)
	}
	return nil
}
