package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// maxVisits bounds how often nodes are read. Aliases let a short text stand for
// a long one.
const maxVisits = 100_000

// reader reads the values of one file and gathers what is wrong with them.
type reader struct {
	name     string
	dir      string // of the file: what relative paths begin at
	env      func(name string) string
	aliases  map[*ast.AliasNode]ast.Node
	visits   int
	places   map[string]Place // of the values of fields, by their paths
	problems []Problem
	hidden   Redactor
}

func (r *reader) wrong(at Place, format string, args ...any) {
	at.File = r.name
	r.problems = append(r.problems, Problem{at, fmt.Sprintf(format, args...)})
}

// value is a node with its way from the root, for messages.
type value struct {
	*reader
	node ast.Node // with anchors and aliases resolved; nil if nothing was readable
	at   Place    // in the file, of the alias if there is one
	path string
}

// value returns what a node stands for.
func (r *reader) value(node ast.Node, path string) value {
	v := value{r, node, placeOfNode(node), path}
	for {
		if r.visits++; r.visits > maxVisits {
			if r.visits == maxVisits+1 {
				r.wrong(v.at, "%s: the aliases of this file stand for too much", path)
			}
			v.node = nil
			return v
		}
		switch n := v.node.(type) {
		case *ast.AnchorNode:
			v.node = n.Value
			v.at = placeOfNode(n.Value)
		case *ast.AliasNode:
			target, ok := r.aliases[n]
			if !ok {
				v.wrong("there is no such anchor before this alias: put a text that begins with * in quotes")
				v.node = nil
				return v
			}
			v.node = target
		case *ast.TagNode:
			v.wrong("a tag such as !!str has no meaning here: leave it out")
			v.node = nil
			return v
		case *ast.MappingValueNode:
			v.node = unsplit(n, n)
			return v
		case *ast.MappingNode:
			if len(n.Values) == 1 && !n.IsFlowStyle {
				v.node = unsplit(n, n.Values[0])
			}
			return v
		default:
			return v
		}
	}
}

func (v value) wrong(format string, args ...any) {
	v.reader.wrong(v.at, "%s: %s", v.path, fmt.Sprintf(format, args...))
}

// within names a member of the value at path.
func within(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// entry is a member of a mapping.
type entry struct {
	name  string
	at    Place // of the name
	value ast.Node
}

// entries returns the members of a mapping in their order: its own, and then
// what it merges and has not itself. An empty value is an empty mapping.
func (v value) entries() (list []entry, ok bool) {
	var members []*ast.MappingValueNode
	switch n := v.node.(type) {
	case nil:
		return nil, false
	case *ast.MappingNode:
		members = n.Values
	case *ast.MappingValueNode:
		members = []*ast.MappingValueNode{n}
	case *ast.NullNode:
	default:
		v.wrong("fields are wanted, not %s", describe(n))
		return nil, false
	}
	known := map[string]bool{}
	var merged []ast.Node
	for _, member := range members {
		if _, merge := member.Key.(*ast.MergeKeyNode); merge {
			merged = append(merged, member.Value)
			continue
		}
		at := placeOf(member.Key.GetToken())
		name, ok := member.Key.(*ast.StringNode)
		switch {
		case !ok:
			v.reader.wrong(at, "%s: this is no name of a field: put it in quotes if it is one", v.path)
		case known[name.Value]:
			v.reader.wrong(at, "%s is there twice", within(v.path, name.Value))
		default:
			known[name.Value] = true
			list = append(list, entry{name.Value, at, member.Value})
		}
	}
	for _, node := range merged {
		for _, e := range v.merge(node) {
			if !known[e.name] {
				known[e.name] = true
				list = append(list, e)
			}
		}
	}
	return list, true
}

// merge returns what the value of a merge key adds: the members of a mapping,
// or of several, the first of which wins.
func (v value) merge(node ast.Node) (list []entry) {
	merged := v.value(node, within(v.path, "<<"))
	mappings := []value{merged}
	if sequence, ok := merged.node.(*ast.SequenceNode); ok {
		mappings = nil
		for _, element := range sequence.Values {
			mappings = append(mappings, v.value(element, merged.path))
		}
	}
	for _, mapping := range mappings {
		members, _ := mapping.entries()
		list = append(list, members...)
	}
	return list
}

// unknown names a field that is not known, unless it may be a value that lost
// its name, as a password of two words does: values are not shown.
func (v value) unknown(e entry, known []string) string {
	_, near := Nearest(e.name, known)
	_, empty := e.value.(*ast.NullNode)
	if isName(e.name) && (near || !empty) {
		return within(v.path, e.name)
	}
	return within(v.path, "…")
}

// list calls read for each element.
func (v value) list(read func(element value)) {
	switch n := v.node.(type) {
	case nil:
	case *ast.SequenceNode:
		if len(n.Values) == 0 {
			v.wrong("the list is empty")
		}
		for i, element := range n.Values {
			if e := v.value(element, fmt.Sprintf("%s[%d]", v.path, i)); v.visits <= maxVisits {
				read(e)
			}
		}
	default:
		v.wrong("a list is wanted, not %s: write [a, b]", describe(n))
	}
}

// written returns a scalar as it stands in the file.
func (v value) written(wanted string) (string, bool) {
	switch n := v.node.(type) {
	case nil:
		return "", false
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	v.wrong("%s is wanted, not %s", wanted, describe(v.node))
	return "", false
}

// text reads a text. A number or truth value that is not in quotes is refused:
// YAML would have it lose zeros and signs.
func (v value) text(target *string) {
	switch n := v.node.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		v.wrong("a text is wanted, not %s: put it in quotes", describe(n))
		return
	}
	written, ok := v.written("a text")
	if !ok {
		return
	}
	if resolved, ok := v.resolve(written); ok {
		if resolved.text == "" {
			v.wrong("it is empty: write a value, or leave the field out")
		}
		*target = resolved.text
	}
}

// filePath reads a path. A relative one begins at the directory of the file.
func (v value) filePath(target *string) {
	v.text(target)
	if *target != "" && !filepath.IsAbs(*target) {
		*target = filepath.Join(v.dir, *target)
	}
}

// quantity reads a value that parse understands.
func quantity[T any](v value, target *T, wanted string, parse func(string) (T, error)) {
	written, ok := v.written(wanted)
	if !ok {
		return
	}
	resolved, ok := v.resolve(written)
	if !ok {
		return
	}
	parsed, err := parse(resolved.text)
	if err != nil {
		v.wrong("%q: %v", written, err) // as written: what it stands for may be secret
		return
	}
	*target = parsed
}

func (v value) duration(target *time.Duration) {
	quantity(v, target, "a duration", func(text string) (time.Duration, error) {
		d, err := ParseDuration(text)
		if err == nil && d <= 0 {
			err = fmt.Errorf("must be above 0")
		}
		return d, err
	})
}

// pause reads a duration that may be 0.
func (v value) pause(target *time.Duration) {
	quantity(v, target, "a duration", func(text string) (time.Duration, error) {
		d, err := ParseDuration(text)
		if err == nil && d < 0 {
			err = fmt.Errorf("must not be below 0")
		}
		return d, err
	})
}

func (v value) window(target *time.Duration) { quantity(v, target, "a duration", ParseWindow) }

func (v value) size(target *int64) { quantity(v, target, "a size", atLeast1(ParseSize)) }

func (v value) count(target *int64) { quantity(v, target, "a number", atLeast1(ParseCount)) }

func atLeast1(parse func(string) (int64, error)) func(string) (int64, error) {
	return func(text string) (int64, error) {
		n, err := parse(text)
		if err == nil && n < 1 {
			err = fmt.Errorf("must be at least 1")
		}
		return n, err
	}
}

// number reads a whole number between two bounds.
func (v value) number(target *int, least, most int64) {
	quantity(v, target, "a number", func(text string) (int, error) {
		n, err := ParseCount(text)
		if err == nil && (n < least || n > most) {
			err = fmt.Errorf("must be between %d and %d", least, most)
		}
		return int(n), err
	})
}

func (v value) rate(target *float64) {
	quantity(v, target, "a rate", func(text string) (float64, error) {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate > 0 && rate < 1) {
			return 0, fmt.Errorf("not a rate: write a number above 0 and below 1, like 0.001")
		}
		return rate, nil
	})
}

func (v value) truth(target *bool) {
	quantity(v, target, "true or false", func(text string) (bool, error) {
		if text != "true" && text != "false" {
			return false, fmt.Errorf("write true or false")
		}
		return text == "true", nil
	})
}

func (v value) choice(target *string, allowed ...string) {
	quantity(v, target, "a word", func(text string) (string, error) {
		if !slices.Contains(allowed, text) {
			return "", fmt.Errorf("%s", OneOf(text, allowed))
		}
		return text, nil
	})
}

// describe names what a node is, never what it holds.
func describe(node ast.Node) string {
	switch node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "fields"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.StringNode, *ast.LiteralNode:
		return "a text"
	}
	return "this"
}
