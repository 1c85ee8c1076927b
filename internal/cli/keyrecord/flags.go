package keyrecord

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
)

// DefaultScope is the default scope of dedup and keys.
const DefaultScope = "default"

// KeyFlags select one key.
type KeyFlags struct{ jsonID bool }

// Add adds --json-id.
func (f *KeyFlags) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.jsonID, "json-id", false, "each ID is a JSON value: '\"42\"' is the string, '42' the number")
}

// Keys returns the keys that the words may mean.
func (f *KeyFlags) Keys(scope string, words []string, p *term.Problems) []semel.Key {
	if len(words) == 0 {
		p.Addf("the ID of the key is missing")
		return nil
	}
	var (
		ids []string
		err error
	)
	if f.jsonID {
		var id string
		text := words[0]
		if len(words) > 1 {
			text = "[" + strings.Join(words, ",") + "]"
		}
		id, err = NewIDParser().ID([]byte(text))
		ids = []string{id}
	} else {
		ids, err = IDReadings(words)
	}
	if err != nil {
		p.Addf("ID %s: %v", strings.Join(words, " "), err)
		return nil
	}
	keys := make([]semel.Key, len(ids))
	for i, id := range ids {
		keys[i] = semel.Key{Scope: scope, ID: id}
		if err := keys[i].Validate(); err != nil {
			p.Addf("%v", err)
			return nil
		}
	}
	return keys
}
