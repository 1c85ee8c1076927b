package facts

import (
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
)

// TestTheTroubleOfAnotherScopeIsNoneOfTheKey has a key in the scope of one pipeline, in a store that another one uses too.
func TestTheTroubleOfAnotherScopeIsNoneOfTheKey(t *testing.T) {
	t.Parallel()
	answers := func() []*Answer {
		return []*Answer{
			{Pipeline: "other", Record: &keyrecord.Line{}, Elsewhere: []string{"pay"}, trouble: "other is paused"},
			{Pipeline: "pay", Record: &keyrecord.Line{}, record: semel.Record{State: semel.Unknown}, trouble: "pay is paused"},
		}
	}
	app := &term.App{Redact: strings.Clone}
	for found, want := range map[int][]string{2: {"pay is paused"}, 1: {"other is paused"}} {
		f := findings{answers: answers()[:found]}
		if got := f.whole(app, nil, false).Troubles; !slices.Equal(got, want) {
			t.Errorf("of %d answers: %q, want %q", found, got, want)
		}
	}
}
