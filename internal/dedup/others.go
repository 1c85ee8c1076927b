package dedup

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
)

// command is what a run does: its inputs, its rules for equal lines and its
// outputs. Options about speed and reports do not count. Its JSON form names
// the run in the store, so new fields must be left out when they are empty.
type command struct {
	Inputs, Keys, Outputs                        []string
	Format, Scope, OnMissing, OnMismatch, Window string
	Delimiter                                    string `json:",omitempty"`
	NoHeader                                     bool   `json:",omitempty"`
	// SameScope is not part of the identity.
	SameScope bool `json:",omitempty"`
}

// command returns the command of a run.
func (r *Run) command() command {
	o := &r.opts
	c := command{
		Format: string(r.extract.format), Scope: o.Scope,
		OnMissing: string(o.OnMissing), OnMismatch: string(o.OnMismatch), Window: o.Window.String(),
		NoHeader: o.NoHeader, SameScope: o.SameScope,
	}
	if o.Delimiter != 0 && o.Delimiter != ',' {
		c.Delimiter = string(rune(o.Delimiter))
	}
	for _, in := range r.inputs {
		c.Inputs = append(c.Inputs, in.path)
	}
	for _, rule := range r.extract.rules {
		c.Keys = append(c.Keys, rule.String())
	}
	for _, out := range r.outputs {
		c.Outputs = append(c.Outputs, out.flag, out.path)
	}
	return c
}

// settings names all of the command but the inputs. Other than in [command.identity],
// outputs that have no path count by their names: what went to one is not in another.
func (r *Run) settings() string {
	c := r.command()
	c.Inputs = nil
	for i, out := range r.outputs {
		if out.path == "" {
			c.Outputs[2*i+1] = out.name
		}
	}
	return c.identity()
}

// named returns the command with the names of outputs that have no path, such
// as devices, or another ending than their path.
func (c command) named(outputs []*output) *command {
	c.Outputs = slices.Clone(c.Outputs)
	for i, out := range outputs {
		if kind, _ := compressionOf(out.path); out.path == "" || kind != out.compression {
			c.Outputs[2*i+1] = out.name
		}
	}
	return &c
}

// line returns the command line that runs the command with a store.
func (c *command) line(store string) string {
	words := []string{"semel", "dedup"}
	flag := func(name, value, preset string) {
		if value != preset {
			words = append(words, name, value)
		}
	}
	for _, rule := range c.Keys {
		flag("--key", rule, "")
	}
	unclear := slices.ContainsFunc(c.Inputs, func(name string) bool { return string(formatOfName(name)) != c.Format })
	if unclear {
		flag("--format", c.Format, "")
	}
	flag("--delimiter", c.Delimiter, "")
	if c.NoHeader {
		words = append(words, "--no-header")
	}
	flag("--store", store, "")
	flag("--scope", c.Scope, "default")
	if c.SameScope {
		words = append(words, "--same-scope")
	}
	flag("--window", c.Window, semel.Forever.String())
	flag("--on-missing", c.OnMissing, string(MissingFail))
	flag("--on-mismatch", c.OnMismatch, string(MismatchDrop))
	for i := 0; i+1 < len(c.Outputs); i += 2 {
		flag(c.Outputs[i], c.Outputs[i+1], "")
	}
	words = append(words, c.Inputs...)
	for i, word := range words {
		words[i] = shellWord(word)
	}
	return strings.Join(words, " ")
}

// shellWord returns a word as a shell reads it.
func shellWord(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=+@%"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// covers reports whether every line that the other command has left is decided
// when this one is finished.
func (c *command) covers(other *command) bool {
	return other != nil && c.Scope == other.Scope && slices.Equal(c.Keys, other.Keys) && slices.Equal(c.Inputs, other.Inputs)
}

// otherRun is an unfinished run of another command in the same store.
type otherRun struct {
	id  string
	run runState
	at  positionState
}

// findOthers returns the unfinished runs of commands other than id, except runs
// that decided no line, runs whose inputs are gone and runs whose lines another
// command has decided.
func findOthers(positions map[string][]byte, v values, id string) []otherRun {
	var found []otherRun
	for name, data := range positions {
		o := otherRun{id: strings.TrimPrefix(name, positionValue)}
		if o.id == id || !strings.HasPrefix(name, positionValue) || json.Unmarshal(data, &o.at) != nil || o.at.Finished || o.at.Covered || o.at.Counts.Read == 0 {
			continue
		}
		known, err := v.read(runValue+o.id, &o.run)
		gone := slices.ContainsFunc(o.run.Inputs, func(in inputState) bool {
			_, err := os.Stat(in.Path)
			return err != nil
		})
		// A value that cannot be read is reported by the command that needs it.
		if known && err == nil && !gone && o.at.Input < len(o.run.Inputs) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b otherRun) int { return strings.Compare(a.id, b.id) })
	return found
}

// mostOthers is how many unfinished runs of other commands are named.
const mostOthers = 3

// noteOthers notes unfinished runs of other commands, which this run leaves
// alone.
func (r *Run) noteOthers(own *command) {
	others := r.committer.others
	for i, o := range others {
		if i == mostOthers {
			r.opts.Note(fmt.Sprintf("%d more unfinished runs of other commands are in the store", len(others)-mostOthers))
			return
		}
		what := "a run of another command is unfinished"
		if own.covers(o.run.Command) {
			what = "an earlier run of these inputs, with other flags, is unfinished"
		}
		where := fmt.Sprintf("%s:%d", o.run.Inputs[o.at.Input].Path, o.at.Line)
		if o.at.Line == 0 {
			where = "the input before " + o.run.Inputs[o.at.Input].Path
		}
		text := fmt.Sprintf("%s: it stopped after %s, and this run does not continue it", what, where)
		if o.run.Command != nil {
			text += "; to continue it, run: " + o.run.Command.line(r.opts.Store)
		}
		r.opts.Note(text)
	}
}
