package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel/internal/schema"
)

// checkStores finds what is wrong between stores that are each right.
func checkStores(r *schema.Document, f *File) {
	c := &checker{Document: r, file: f, usedBy: map[string]string{}}
	for _, s := range f.Stores {
		switch spec := s.Spec.(type) {
		case *Tiered:
			c.stack(s, spec)
		case *Filter:
			c.filterServer(s, spec)
		}
	}
	c.sharedPlaces()
}

type checker struct {
	*schema.Document
	file   *File
	usedBy map[string]string // upper layers, and the stack each one is in
	looped string            // a store whose loop is reported
}

func (c *checker) at(p schema.Place, path, format string, args ...any) {
	c.WrongAt(p, "%s: %s", path, fmt.Sprintf(format, args...))
}

// find returns a store that something at a place refers to.
func (c *checker) find(r schema.Reference, path string) (*Store, bool) {
	s, ok := c.file.Store(r.Name)
	if !ok {
		hint := "the stores are " + strings.Join(c.file.StoreNames(), ", ")
		if near, ok := schema.Nearest(r.Name, c.file.StoreNames()); ok {
			hint = "did you mean " + near + "?"
		}
		c.at(r.At, path, "there is no store %q: %s", r.Name, hint)
	}
	return s, ok
}

// stack checks the layers of one store.
func (c *checker) stack(s *Store, spec *Tiered) {
	path := "stores." + s.Name + ".tiered"
	if len(spec.Layers) < 2 {
		if len(spec.Layers) == 1 {
			c.at(spec.Layers[0].At, path, "one layer is no stack: write the layers from the top, the one that decides last, as in [cache, db]")
		}
		return
	}
	seen := map[string]bool{}
	filters := 0
	for i, layer := range spec.Layers {
		below, ok := c.find(layer, path)
		switch {
		case !ok:
			continue
		case seen[layer.Name]:
			c.at(layer.At, path, "%s is there twice", layer.Name)
			continue
		}
		seen[layer.Name] = true
		if loop := c.loop(below, s.Name, nil); loop != nil {
			if !slices.Contains(loop, c.looped) {
				c.at(layer.At, path, "the store would be a layer of itself, %s: take one of them out", strings.Join(append([]string{s.Name}, loop...), " over "))
			}
			c.looped = s.Name
			return
		}
		if i == len(spec.Layers)-1 {
			c.decider(layer, below, path)
			continue
		}
		c.upper(layer, below, s.Name, path)
		if _, ok := below.Spec.(*Filter); ok {
			filters++
		}
	}
	if filters > 0 && !spec.SeesEveryWriter {
		c.at(spec.Layers[0].At, path, "a filter saves nothing where others write to %s past it: write { layers: [%s], sees_every_writer: true } if nobody does, or leave the filter out",
			spec.Layers[len(spec.Layers)-1].Name, strings.Join(names(spec.Layers), ", "))
	}
}

func names(layers []schema.Reference) []string {
	list := make([]string, len(layers))
	for i, l := range layers {
		list[i] = l.Name
	}
	return list
}

// loop returns the way from a store to the one of this name, nil if there is
// none.
func (c *checker) loop(from *Store, name string, way []string) []string {
	if slices.Contains(way, from.Name) {
		return nil // a loop, but not through name: it is reported where it is
	}
	way = append(slices.Clone(way), from.Name)
	if from.Name == name {
		return way
	}
	spec, ok := from.Spec.(*Tiered)
	if !ok {
		return nil
	}
	for _, layer := range spec.Layers {
		if s, ok := c.file.Store(layer.Name); ok {
			if found := c.loop(s, name, way); found != nil {
				return found
			}
		}
	}
	return nil
}

// decider checks the last layer, on which every answer rests.
func (c *checker) decider(layer schema.Reference, s *Store, path string) {
	switch s.Spec.(type) {
	case *Memory:
		c.at(layer.At, path, "%s is the last layer, which decides, and memory forgets everything at its end: put a store that lasts behind it", layer.Name)
	case *Filter:
		c.at(layer.At, path, "%s is the last layer, which decides, and a filter takes some new messages for old: put an exact store behind it", layer.Name)
	}
}

// upper checks a layer that answers for the ones below it.
func (c *checker) upper(layer schema.Reference, s *Store, stack, path string) {
	switch s.Spec.(type) {
	case *Memory, *Redis, *Filter:
	case invalid:
		return
	default:
		c.at(layer.At, path, "%s is %s, which cannot stand above another layer: memory, redis and filter can", layer.Name, s.Spec.Kind())
		return
	}
	if other, ok := c.usedBy[layer.Name]; ok {
		c.at(layer.At, path, "%s is a layer of %s already: a key that is done there would be a duplicate here: name a layer of its own", layer.Name, other)
		return
	}
	c.usedBy[layer.Name] = stack
}

// filterServer checks the store whose server a filter uses.
func (c *checker) filterServer(s *Store, spec *Filter) {
	if spec.Redis.Name == "" {
		return
	}
	path := "stores." + s.Name + ".filter.redis"
	server, ok := c.find(spec.Redis, path)
	if !ok {
		return
	}
	switch server.Spec.(type) {
	case *Redis, invalid:
	default:
		c.at(spec.Redis.At, path, "%s is %s: name a store of the kind redis, on whose server the filter is to be", spec.Redis.Name, server.Spec.Kind())
	}
}

// sharedPlaces refuses two stores in one place that would take each other's
// keys for their own.
func (c *checker) sharedPlaces() {
	owner := map[string]*Store{}
	for _, s := range c.file.Stores {
		place, words := "", ""
		switch spec := s.Spec.(type) {
		case *Embedded:
			place, words = "embedded\x00"+spec.Path, "directory"
		case *Redis:
			place, words = redisPlace(spec), "server and prefix"
		}
		if place == "" {
			continue
		}
		if first, ok := owner[place]; ok {
			c.at(s.At, "stores."+s.Name, "it has the %s of %s (line %d): what is done in one would be done in the other: give it one of its own", words, first.Name, first.At.Line)
			continue
		}
		owner[place] = s
	}
}

// redisPlace tells where a store keeps its keys, as far as its words tell.
func redisPlace(spec *Redis) string {
	parts := []string{"redis", spec.Prefix, spec.URL.Reveal()}
	parts = append(parts, spec.Cluster...)
	if spec.Sentinel != nil {
		parts = append(parts, spec.Sentinel.Master, fmt.Sprint(spec.Database))
		parts = append(parts, spec.Sentinel.Addresses...)
	}
	if len(parts) == 3 && parts[2] == "" {
		return ""
	}
	return strings.Join(parts, "\x00")
}
