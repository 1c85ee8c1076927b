package schema

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

// document is one file while its values are read: it gathers what is wrong with
// them.
type Document struct {
	Name     string
	Dir      string // of the file: what relative paths begin at
	env      func(name string) string
	tree     ast.Node
	aliases  map[*ast.AliasNode]ast.Node
	visits   int
	Places   map[string]Place // of the values of fields, by their paths
	Problems []Problem
	// unresolved are references that this machine cannot resolve.
	unresolved []unresolved
	Hidden     Redactor
}

func (r *Document) WrongAt(at Place, format string, args ...any) {
	at.File = r.Name
	r.Problems = append(r.Problems, Problem{at, fmt.Sprintf(format, args...)})
}

// value is a node with its way from the root, for messages.
type Value struct {
	*Document
	Node ast.Node // with anchors and aliases resolved; nil if nothing was readable
	at   Place    // in the file, of the alias if there is one
	Path string
}

// value returns what a node stands for.
func (r *Document) Value(node ast.Node, path string) Value {
	v := Value{r, node, placeOfNode(node), path}
	for {
		if r.visits++; r.visits > maxVisits {
			if r.visits == maxVisits+1 {
				r.WrongAt(v.at, "%s: the aliases of this file stand for too much", path)
			}
			v.Node = nil
			return v
		}
		switch n := v.Node.(type) {
		case *ast.AnchorNode:
			v.Node = n.Value
			v.at = placeOfNode(n.Value)
		case *ast.AliasNode:
			target, ok := r.aliases[n]
			if !ok {
				v.Wrong("there is no such anchor before this alias: put a text that begins with * in quotes")
				v.Node = nil
				return v
			}
			v.Node = target
		case *ast.TagNode:
			v.Wrong("a tag such as !!str has no meaning here: leave it out")
			v.Node = nil
			return v
		case *ast.MappingValueNode:
			v.Node = unsplit(n, n)
			return v
		case *ast.MappingNode:
			if len(n.Values) == 1 && !n.IsFlowStyle {
				v.Node = unsplit(n, n.Values[0])
			}
			return v
		default:
			return v
		}
	}
}

func (v Value) Wrong(format string, args ...any) {
	v.WrongAt(v.at, "%s: %s", v.Path, fmt.Sprintf(format, args...))
}

// within names a member of the value at path.
func Within(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// entry is a member of a mapping.
type Entry struct {
	Name  string
	At    Place // of the name
	Value ast.Node
}

// entries returns the members of a mapping in their order: its own, and then
// what it merges and has not itself. An empty value is an empty mapping.
func (v Value) Entries() (list []Entry, ok bool) {
	var members []*ast.MappingValueNode
	switch n := v.Node.(type) {
	case nil:
		return nil, false
	case *ast.MappingNode:
		members = n.Values
	case *ast.MappingValueNode:
		members = []*ast.MappingValueNode{n}
	case *ast.NullNode:
	default:
		v.Wrong("fields are wanted, not %s", describe(n))
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
			v.WrongAt(at, "%s: this is no name of a field: put it in quotes if it is one", v.Path)
		case known[name.Value]:
			v.WrongAt(at, "%s is there twice", Within(v.Path, name.Value))
		default:
			known[name.Value] = true
			list = append(list, Entry{name.Value, at, member.Value})
		}
	}
	for _, node := range merged {
		for _, e := range v.merge(node) {
			if !known[e.Name] {
				known[e.Name] = true
				list = append(list, e)
			}
		}
	}
	return list, true
}

// merge returns what the value of a merge key adds: the members of a mapping,
// or of several, the first of which wins.
func (v Value) merge(node ast.Node) (list []Entry) {
	merged := v.Value(node, Within(v.Path, "<<"))
	mappings := []Value{merged}
	if sequence, ok := merged.Node.(*ast.SequenceNode); ok {
		mappings = nil
		for _, element := range sequence.Values {
			mappings = append(mappings, v.Value(element, merged.Path))
		}
	}
	for _, mapping := range mappings {
		members, _ := mapping.Entries()
		list = append(list, members...)
	}
	return list
}

// unknown names a field that is not known, unless it may be a value that lost
// its name, as a password of two words does: values are not shown.
func (v Value) unknown(e Entry, known []string) string {
	_, near := Nearest(e.Name, known)
	_, empty := e.Value.(*ast.NullNode)
	if IsName(e.Name) && (near || !empty) {
		return Within(v.Path, e.Name)
	}
	return Within(v.Path, "…")
}

// list calls read for each element.
func (v Value) List(read func(element Value)) {
	switch n := v.Node.(type) {
	case nil:
	case *ast.SequenceNode:
		if len(n.Values) == 0 {
			v.Wrong("the list is empty")
		}
		for i, element := range n.Values {
			if e := v.Value(element, fmt.Sprintf("%s[%d]", v.Path, i)); v.visits <= maxVisits {
				read(e)
			}
		}
	default:
		v.Wrong("a list is wanted, not %s: write [a, b]", describe(n))
	}
}

// written returns a scalar as it stands in the file.
func (v Value) written(wanted string) (string, bool) {
	switch n := v.Node.(type) {
	case nil:
		return "", false
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	v.Wrong("%s is wanted, not %s", wanted, describe(v.Node))
	return "", false
}

// text reads a text. A number or truth value that is not in quotes is refused:
// YAML would have it lose zeros and signs.
func (v Value) Text(target *string) {
	switch n := v.Node.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		v.Wrong("a text is wanted, not %s: put it in quotes", describe(n))
		return
	}
	written, ok := v.written("a text")
	if !ok {
		return
	}
	if resolved, ok := v.resolve(written); ok {
		if resolved.text == "" {
			v.Wrong("it is empty: write a value, or leave the field out")
		}
		*target = resolved.text
	}
}

// filePath reads a path. A relative one begins at the directory of the file.
func (v Value) FilePath(target *string) {
	v.Text(target)
	if *target != "" && !filepath.IsAbs(*target) {
		*target = filepath.Join(v.Dir, *target)
	}
}

// quantity reads a value that parse understands.
func Quantity[T any](v Value, target *T, wanted string, parse func(string) (T, error)) {
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
		v.Wrong("%q: %v", written, err) // as written: what it stands for may be secret
		return
	}
	*target = parsed
}

func (v Value) duration(target *time.Duration) {
	Quantity(v, target, "a duration", func(text string) (time.Duration, error) {
		d, err := ParseDuration(text)
		if err == nil && d <= 0 {
			err = fmt.Errorf("must be above 0")
		}
		return d, err
	})
}

// pause reads a duration that may be 0.
func (v Value) pause(target *time.Duration) {
	Quantity(v, target, "a duration", func(text string) (time.Duration, error) {
		d, err := ParseDuration(text)
		if err == nil && d < 0 {
			err = fmt.Errorf("must not be below 0")
		}
		return d, err
	})
}

func (v Value) window(target *time.Duration) { Quantity(v, target, "a duration", ParseWindow) }

func (v Value) size(target *int64) { Quantity(v, target, "a size", atLeast1(ParseSize)) }

func (v Value) count(target *int64) { Quantity(v, target, "a number", atLeast1(ParseCount)) }

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
func (v Value) number(target *int, least, most int64) {
	Quantity(v, target, "a number", func(text string) (int, error) {
		n, err := ParseCount(text)
		if err == nil && (n < least || n > most) {
			err = fmt.Errorf("must be between %d and %d", least, most)
		}
		return int(n), err
	})
}

func (v Value) rate(target *float64) {
	Quantity(v, target, "a rate", func(text string) (float64, error) {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate > 0 && rate < 1) {
			return 0, fmt.Errorf("not a rate: write a number above 0 and below 1, like 0.001")
		}
		return rate, nil
	})
}

func (v Value) Truth(target *bool) {
	Quantity(v, target, "true or false", func(text string) (bool, error) {
		if text != "true" && text != "false" {
			return false, fmt.Errorf("write true or false")
		}
		return text == "true", nil
	})
}

func (v Value) choice(target *string, allowed ...string) {
	Quantity(v, target, "a word", func(text string) (string, error) {
		if !slices.Contains(allowed, text) {
			return "", fmt.Errorf("%s", OneOf(text, allowed))
		}
		return text, nil
	})
}

// IsList reports whether a list stands there.
func (v Value) IsList() bool {
	_, ok := v.Node.(*ast.SequenceNode)
	return ok
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
