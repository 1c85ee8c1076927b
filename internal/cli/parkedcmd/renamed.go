package parkedcmd

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// noteStrangers reports how many messages in the same places belong to pipelines
// that the configuration does not have, for instance a renamed one. No process
// redrives those. Places that cannot be counted are skipped, because this is only
// a hint.
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
		letters, ok := s.letters.(pipeline.DeadLetterStore) // each topic belongs to one pipeline
		if !ok || seen[place] {
			continue
		}
		seen[place] = true
		if of := strangers(ctx, letters, f.conf.Pipelines); len(of) > 0 {
			count := 0
			for _, n := range of {
				count += n
			}
			f.Note("%s more in %s, of pipelines that %s does not have: %s. A pipeline that was renamed needs its old name for them, in this or in another configuration",
				term.Plural(count, "message"), place, f.file, strings.Join(slices.Sorted(maps.Keys(of)), ", "))
		}
	}
}

// strangers counts the messages of unknown pipelines in a dead-letter store, by
// pipeline. It reads messages only if the total shows that there are some.
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
	// An error affects only some messages; the others are still counted.
	_ = letters.List(ctx, "", func(m *pipeline.Parked) bool {
		if !names[m.Pipeline] {
			of[term.DisplayText(m.Pipeline)]++
			left--
		}
		return left > 0 && ctx.Err() == nil
	})
	return of
}
