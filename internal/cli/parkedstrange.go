package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// noteStrangers says how many messages lie beside what was looked at, of pipelines
// that the configuration does not have: of one that was renamed, for instance.
// Nobody redrives those. What cannot be counted is left out: it is beside the
// point.
func (f *parkedFlags) noteStrangers(ctx context.Context, stores []deadLetters) {
	if f.pipeline != "" {
		return
	}
	seen := map[string]bool{}
	for _, s := range stores {
		place := s.spec.Parked.Path
		if place == "" {
			place = "the store " + s.spec.Parked.Store.Name
		}
		letters, ok := s.letters.(pipeline.DeadLetterStore) // a topic is its pipeline's own
		if !ok || seen[place] {
			continue
		}
		seen[place] = true
		if of := strangers(ctx, letters, f.conf.Pipelines); len(of) > 0 {
			count := 0
			for _, n := range of {
				count += n
			}
			f.note("%s more in %s, of pipelines that %s does not have: %s. A pipeline that was renamed needs its old name for them, in this or in another configuration",
				plural(count, "message"), place, f.file, strings.Join(slices.Sorted(maps.Keys(of)), ", "))
		}
	}
}

// strangers returns how many messages a dead-letter store has of which unknown
// pipelines. It reads them only if the count says that there are some.
func strangers(ctx context.Context, letters pipeline.DeadLetterStore, known []*config.Pipeline) map[string]int {
	left, err := letters.Count(ctx, "")
	names := map[string]bool{}
	for _, p := range known {
		n, e := letters.Count(ctx, p.Name)
		if err != nil || e != nil {
			return nil
		}
		left -= n
		names[p.Name] = true
	}
	of := map[string]int{}
	if left <= 0 {
		return of
	}
	// An error leaves out what it is about; others may be found all the same.
	_ = letters.List(ctx, "", func(m *pipeline.Parked) bool {
		if !names[m.Pipeline] {
			of[displayText(m.Pipeline)]++
			left--
		}
		return left > 0 && ctx.Err() == nil
	})
	return of
}
