package config

import (
	"path/filepath"

	"github.com/semel-dev/semel/internal/schema"
)

// checkPipelines finds what is wrong between pipelines, and between a pipeline
// and the stores.
func checkPipelines(r *schema.Document, f *File) {
	c := &checker{Document: r, file: f}
	files := map[string]*Pipeline{}
	for _, p := range f.Pipelines {
		path := "pipelines." + p.Name
		c.pipelineStore(p, path)
		if sink, ok := p.Sink.(*PostgresSink); ok && sink.Store.Name != "" {
			c.database(sink.Store, path+".sink.postgres.store")
		}
		if p.Parked.Store.Name != "" {
			c.database(p.Parked.Store, path+".parked.store")
		}
		if sink, ok := p.Sink.(*FileSink); ok && sink.Path != "" {
			if other, ok := files[sink.Path]; ok {
				c.at(p.At, path, "its sink is the file that %s writes (line %d): give it one of its own", other.Name, other.At.Line)
			}
			files[sink.Path] = p
		}
		if mode := f.Mode(p); p.OnStoreError == "pass" && mode != TwoPhase && mode != Lossy {
			c.at(c.Places[path+".on_store_error"], path+".on_store_error", "pass cannot be: the store is where the effect goes (%s): write stop", mode)
		}
		if p.Parked == (Parked{}) {
			p.Parked = defaultParked(r, f, p)
		}
		c.topics(p, path)
	}
	c.changelogs()
}

// defaultParked is where messages are put aside if the file does not say.
func defaultParked(r *schema.Document, f *File, p *Pipeline) Parked {
	if source, ok := p.Source.(*KafkaSource); ok && f.Mode(p) == SourceIsSink && len(source.Topics) > 0 {
		return Parked{Topic: source.Topics[0] + "-parked"}
	}
	return Parked{Path: filepath.Join(r.Dir, "semel-parked")}
}

// pipelineStore checks the store of a pipeline's keys.
func (c *checker) pipelineStore(p *Pipeline, path string) {
	if p.Store.Name == "" {
		return
	}
	path += ".store"
	if _, ok := c.find(p.Store, path); !ok {
		return
	}
	if stack, ok := c.file.LayerOf(p.Store.Name); ok {
		c.at(p.Store.At, path, "%s is a layer of %s, which only copies what another store decided: name %s, or a store of its own", p.Store.Name, stack.Name, stack.Name)
	}
}

// database checks a reference to a store for its database.
func (c *checker) database(r schema.Reference, path string) {
	s, ok := c.find(r, path)
	if !ok {
		return
	}
	switch s.Spec.(type) {
	case *Postgres, invalid:
	default:
		c.at(r.At, path, "%s is %s: name a store of the kind postgres", r.Name, s.Spec.Kind())
	}
}
