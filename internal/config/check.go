package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
)

// checkStores reports conflicts between stores that are valid on their own.
func checkStores(r *schema.Document, f *File) {
	c := &Checker{Document: r, File: f, usedBy: map[string]string{}}
	for _, s := range f.Stores {
		c.stack(s)
		s.Spec.Check(c, s)
	}
	c.sharedPlaces()
}

// Checker collects conflicts between parts of a file that are valid on their own.
type Checker struct {
	*schema.Document
	File   *File
	usedBy map[string]string // upper layers, and the stack of each
	looped string            // a store whose loop was already reported
}

// Report adds a problem of the field at path.
func (c *Checker) Report(p schema.Place, path, format string, args ...any) {
	c.WrongAt(p, "%s: %s", path, fmt.Sprintf(format, args...))
}

// Find returns the store that a field refers to.
func (c *Checker) Find(r schema.Reference, path string) (*Store, bool) {
	s, ok := c.File.Store(r.Name)
	if !ok {
		text := "the stores are " + strings.Join(c.File.StoreNames(), ", ")
		if near, ok := diagnose.Nearest(r.Name, c.File.StoreNames()); ok {
			text = "did you mean " + near + "?"
		}
		c.Report(r.At, path, "there is no store %q: %s", r.Name, text)
	}
	return s, ok
}

// stack checks the layers of one store.
func (c *Checker) stack(s *Store) {
	layers := s.Spec.About().Layers
	if layers == nil {
		return
	}
	path := "stores." + s.Name + "." + s.Spec.Kind()
	if len(layers) < 2 {
		c.Report(layers[0].At, path, "a stack needs two layers or more: write them from the top, as in [cache, db]; the last one decides")
		return
	}
	seen := map[string]bool{}
	for i, layer := range layers {
		below, ok := c.Find(layer, path)
		switch {
		case !ok:
			continue
		case seen[layer.Name]:
			c.Report(layer.At, path, "%s is defined twice", layer.Name)
			continue
		}
		seen[layer.Name] = true
		if loop := c.loop(below, s.Name, nil); loop != nil {
			if !slices.Contains(loop, c.looped) {
				c.Report(layer.At, path, "the store would be a layer of itself, %s: take one of them out", strings.Join(append([]string{s.Name}, loop...), " over "))
			}
			c.looped = s.Name
			return
		}
		if i == len(layers)-1 {
			c.decider(layer, below, path)
			continue
		}
		c.upper(layer, below, s.Name, path)
	}
}

// loop returns the path from a store to the store with this name, or nil if there
// is no such path.
func (c *Checker) loop(from *Store, name string, way []string) []string {
	if slices.Contains(way, from.Name) {
		return nil // a loop, but not through name; it is reported elsewhere
	}
	way = append(slices.Clone(way), from.Name)
	if from.Name == name {
		return way
	}
	for _, layer := range from.Spec.About().Layers {
		if s, ok := c.File.Store(layer.Name); ok {
			if found := c.loop(s, name, way); found != nil {
				return found
			}
		}
	}
	return nil
}

// decider checks the last layer, which decides every answer.
func (c *Checker) decider(layer schema.Reference, s *Store, path string) {
	if why := s.Spec.About().NotLast; why != "" {
		c.Report(layer.At, path, "%s cannot be the last layer, which decides: %s", layer.Name, why)
	}
}

// upper checks a layer that answers for the layers below it.
func (c *Checker) upper(layer schema.Reference, s *Store, stack, path string) {
	switch kind := s.Spec.Kind(); {
	case kind == "": // already reported
		return
	case !s.Spec.About().Upper:
		c.Report(layer.At, path, "%s is %s, which cannot be an upper layer: memory, redis and filter can", layer.Name, kind)
		return
	}
	if other, ok := c.usedBy[layer.Name]; ok {
		c.Report(layer.At, path, "%s is a layer of %s already: a key that is done there would be a duplicate here: give each stack its own layer", layer.Name, other)
		return
	}
	c.usedBy[layer.Name] = stack
}

// sharedPlaces refuses two stores in one place, because each would treat the
// other's keys as its own.
func (c *Checker) sharedPlaces() {
	owner := map[string]*Store{}
	for _, s := range c.File.Stores {
		about := s.Spec.About()
		place := s.Spec.Kind() + "\x00" + about.Place
		if about.Place == "" {
			continue
		}
		if first, ok := owner[place]; ok {
			c.Report(s.At, "stores."+s.Name, "it has the same %s as %s (line %d), so a key that is done in one would be done in the other: give each store its own", about.PlaceName, first.Name, first.At.Line)
			continue
		}
		owner[place] = s
	}
}
