package schema

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel/internal/diagnose"
)

// maxVisits limits how often nodes are read. With aliases, a short text can stand
// for a very long one.
const maxVisits = 100_000

// Document is one file while its values are read. It collects the problems found
// in them.
type Document struct {
	Name string
	Dir  string // directory of the file; relative paths start here
	env  func(name string) string
	// Placeholders makes references that this machine cannot resolve stand for
	// themselves.
	Placeholders bool
	tree         ast.Node
	aliases      map[*ast.AliasNode]ast.Node
	visits       int
	Places       map[string]Place // places of field values, by path
	Problems     []Problem
	// unresolved holds the references that this machine cannot resolve.
	unresolved []unresolved
	Hidden     Redactor
	Exposed    []Exposed // the secrets that others may read
}

func (r *Document) WrongAt(at Place, format string, args ...any) {
	at.File = r.Name
	r.Problems = append(r.Problems, Problem{at, fmt.Sprintf(format, args...)})
}

// Value is a node with its path from the root, for messages.
type Value struct {
	*Document
	Node ast.Node // with anchors and aliases resolved; nil if nothing could be read
	at   Place    // place in the file; for an alias, the place of the alias
	Path string
}

// Value returns the value of a node.
func (r *Document) Value(node ast.Node, path string) Value {
	v := Value{r, node, placeOfNode(node), path}
	for {
		if r.visits++; r.visits > maxVisits {
			if r.visits == maxVisits+1 {
				r.WrongAt(v.at, "%s: the aliases of this file expand to too much", path)
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
				v.Wrong("this alias has no anchor before it: put a text that begins with * in quotes")
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

// Place returns where the value is.
func (v Value) Place() Place {
	at := v.at
	at.File = v.Name
	return at
}

func (v Value) Wrong(format string, args ...any) {
	v.WrongAt(v.at, "%s: %s", v.Path, fmt.Sprintf(format, args...))
}

// Within returns the path of a member of the value at path.
func Within(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Entry is a member of a mapping.
type Entry struct {
	Name  string
	At    Place // place of the name
	Value ast.Node
}

// Entries returns the members of a mapping in their order. Its own members come
// first, then merged members that it does not have itself. An empty value is an
// empty mapping.
func (v Value) Entries() (list []Entry, ok bool) { return v.entries("") }

// entries is Entries with a hint for people who wrote a text instead of a mapping.
func (v Value) entries(hint string) (list []Entry, ok bool) {
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
		if text, ok := n.(*ast.StringNode); ok {
			if name, rest, colon := strings.Cut(text.Value, ":"); colon && IsName(name) && !strings.HasPrefix(rest, "//") {
				hint = ": write a space after the colon of " + name + ":"
			}
		}
		v.Wrong("expected fields, got %s%s", describe(n), hint)
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
			v.WrongAt(at, "%s: this is not a field name: put it in quotes if it is one", v.Path)
		case known[name.Value]:
			v.WrongAt(at, "%s is defined twice", Within(v.Path, name.Value))
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

// merge returns the members that a merge key adds. Its value is one mapping or a
// list of mappings, of which the first one wins.
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

// unknown names an unknown field. It hides the name if that may be part of a
// value, such as the second word of a password: values are never shown.
func (v Value) unknown(e Entry, known []string) string {
	_, near := diagnose.Nearest(e.Name, known)
	_, empty := e.Value.(*ast.NullNode)
	if IsName(e.Name) && (near || !empty) {
		return Within(v.Path, e.Name)
	}
	return Within(v.Path, "…")
}

// List calls read for each element of a list.
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
		v.Wrong("expected a list, got %s: write [a, b]", describe(n))
	}
}

// written returns a scalar as written in the file.
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
	v.Wrong("expected %s, got %s", wanted, describe(v.Node))
	return "", false
}

// Text reads a text. An unquoted number or truth value is refused, because YAML
// would drop its zeros and signs.
func (v Value) Text(target *string) {
	switch n := v.Node.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		v.Wrong("expected a text, got %s: put it in quotes", describe(n))
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

// FilePath reads a path. A relative path starts at the directory of the file.
func (v Value) FilePath(target *string) {
	v.Text(target)
	if *target != "" && !filepath.IsAbs(*target) {
		*target = filepath.Join(v.Dir, *target)
	}
}

// Quantity reads a value with parse.
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
	if text, ok := any(target).(*string); ok && err != nil && v.hasPlaceholder() {
		*text = resolved.text
		return
	}
	if err != nil {
		v.Wrong("%q: %v", written, err) // as written, because the resolved value may be secret
		return
	}
	*target = parsed
}

// duration reads a duration above 0, or from 0 on.
func (v Value) duration(target *time.Duration, orZero bool) {
	parse := ParsePositive
	if orZero {
		parse = ParsePause
	}
	Quantity(v, target, "a duration", parse)
}

func atLeast1(parse func(string) (int64, error)) func(string) (int64, error) {
	return func(text string) (int64, error) {
		n, err := parse(text)
		if err == nil && n < 1 {
			err = fmt.Errorf("must be at least 1")
		}
		return n, err
	}
}

// number reads a whole number from least to most.
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

func (v Value) share(target *float64) {
	Quantity(v, target, "a share", func(text string) (float64, error) {
		share, err := strconv.ParseFloat(text, 64)
		if err != nil || !(share >= 0 && share <= 1) {
			return 0, fmt.Errorf("not a share: write a number from 0 to 1, like 0.01")
		}
		return share, nil
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
	Quantity(v, target, "a word", func(text string) (string, error) { return ParseChoice(text, allowed...) })
}

// IsList reports whether the value is a list.
func (v Value) IsList() bool {
	_, ok := v.Node.(*ast.SequenceNode)
	return ok
}

// IsMapping reports whether the value is a mapping.
func (v Value) IsMapping() bool {
	switch v.Node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

// describe names the type of a node, never its content.
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
