package keyrecord

import (
	"fmt"
	"strings"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/key"
)

// maxIDParts limits a composite id on the command line. Each part may have two
// readings, and every combination is looked up.
const maxIDParts = 8

// IDReadings returns the ids that command-line words may mean, the most literal
// first. A word is a string. If it reads as a JSON number, true or false, it may
// also mean that. Several words are the parts of one composite id.
func IDReadings(words []string) ([]string, error) {
	if len(words) > maxIDParts {
		return nil, term.Usagef("a composite of %d ids: at most %d are supported", len(words), maxIDParts)
	}
	parts := [][]string{nil} // every combination so far
	for _, word := range words {
		if word == "" {
			return nil, term.Usagef("the id is empty: empty ids are never stored")
		}
		var next [][]string
		for _, reading := range wordReadings(word) {
			for _, begun := range parts {
				next = append(next, append(begun[:len(begun):len(begun)], reading))
			}
		}
		parts = next
	}
	ids := make([]string, len(parts))
	for i, combination := range parts {
		ids[i] = string(key.AppendComposite(nil, combination...))
	}
	return ids, nil
}

// Shaped returns the ids that the functions of a rule, such as lower(), make of ids. Those that
// stay the same are not among them.
func Shaped(rule *key.Rule, ids []string) (list []string) {
	if rule == nil {
		return nil // its value is not known on this machine
	}
	for _, id := range ids {
		if rule.Form() == key.FormFirst {
			for _, part := range rule.Rules() {
				list = append(list, Shaped(part, []string{id})...)
			}
		} else if shaped, err := shapedBy(rule, id); err == nil && shaped != id {
			list = append(list, shaped)
		}
	}
	return list
}

// shapedBy returns the id that a rule makes of an id, or of each part of it.
func shapedBy(rule *key.Rule, id string) (string, error) {
	switch rule.Form() {
	case key.FormShaped:
		shaped, err := rule.AppendShaped(nil, []byte(id))
		return string(shaped), err
	case key.FormAll:
		parts := jsonid.Parts(id)
		if len(parts) != len(rule.Rules()) {
			return id, nil
		}
		for i, part := range rule.Rules() {
			var err error
			if parts[i], err = shapedBy(part, parts[i]); err != nil {
				return "", err
			}
		}
		return string(key.AppendComposite(nil, parts...)), nil
	}
	return id, nil
}

func wordReadings(word string) []string {
	readings := []string{string(key.AppendString(nil, word))}
	if c := word[0]; c == '-' || c >= '0' && c <= '9' || word == "true" || word == "false" {
		if id, err := jsonid.NewParser().ID([]byte(word)); err == nil {
			readings = append(readings, id)
		}
	}
	return readings
}

// DisplayID shows an id to people: as the words that find it if they are
// unambiguous, and as JSON otherwise.
func DisplayID(id string) string {
	text, ok := jsonid.Format(id)
	if !ok {
		if len(id) > 2 && id[0] == 0 && (id[1] == 'h' || id[1] == 'b') {
			return fmt.Sprintf("sha256:%x", id[2:])
		}
		return fmt.Sprintf("%q", id)
	}
	plain := text[0] == '"' && string(text[1:len(text)-1]) == id
	if !plain || id[0] == '[' || strings.TrimSpace(id) != id || len(wordReadings(id)) > 1 {
		return string(text)
	}
	return id
}
