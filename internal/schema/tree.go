package schema

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The parser takes quadratic time for some inputs and recurses once for each
// level. These limits allow every realistic configuration.
const (
	MaxBytes  = 1 << 20
	maxTokens = 50_000
	maxDepth  = 64
)

// parseTree returns the root of the only document, or nil if the file is empty.
// Its problems never quote the file, because it may contain a secret.
func parseTree(data []byte) (ast.Node, *Problem) {
	switch data = bytes.TrimPrefix(data, []byte("\ufeff")); {
	case len(data) > MaxBytes:
		return nil, &Problem{Text: "the file is larger than 1 MiB: a configuration is not read beyond that"}
	case !utf8.Valid(data):
		return nil, &Problem{Text: "the file is not valid UTF-8"}
	}
	tokens := lexer.Tokenize(string(data))
	if p := checkTokens(tokens); p != nil {
		return nil, p
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // duplicates are reported by this package in its own words
	if err != nil {
		return nil, syntaxProblem(err, string(data))
	}
	var root ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.DirectiveType || doc.Body.Type() == ast.CommentType:
		case root != nil:
			return nil, &Problem{Place: placeOfNode(doc.Body), Text: "a second document begins here: a configuration is one document"}
		default:
			root = doc.Body
		}
	}
	return root, nil
}

func checkTokens(tokens token.Tokens) *Problem {
	depth, significant, nested := 0, 0, 0
	for _, tk := range tokens {
		switch tk.Type {
		case token.CommentType:
			continue
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			nested++ // "- - - -" also nests, on one line
		}
		if tk.Prev == nil || tk.Prev.Position.Line != tk.Position.Line {
			nested = 0
		}
		significant++
		switch {
		case depth > maxDepth || nested > maxDepth:
			return &Problem{Place: placeOf(tk), Text: "nested too deeply for a configuration"}
		case significant > maxTokens:
			return &Problem{Place: placeOf(tk), Text: "the file has too many values for a configuration"}
		}
	}
	return nil
}

func syntaxProblem(err error, text string) *Problem {
	var syntax yaml.Error
	if !errors.As(err, &syntax) {
		return &Problem{Text: "not valid YAML"}
	}
	p := &Problem{Place: placeOf(syntax.GetToken()), Text: "not valid YAML: "}
	switch said := syntax.GetMessage(); {
	case strings.Contains(said, "not allowed in this context"):
		p.Text += misplaced(strings.Split(text, "\n"), p.Place)
	case strings.Contains(said, "cannot start any token") && strings.Contains(said, "\t"):
		p.Text += "a tab before a field: indent with spaces"
	case strings.HasSuffix(said, "must be specified"):
		p.Text += "expected " + strings.TrimSuffix(said, " must be specified") + " before this: a bracket of an earlier line is not closed"
	case strings.Contains(said, "could not find end character"):
		p.Text += "the quote that begins here is not closed"
	default:
		p.Text += said
	}
	return p
}

// misplaced says why a field cannot stand at this place of a text.
func misplaced(lines []string, at Place) string {
	if at.Line < 1 || at.Line > len(lines) {
		return "a field is not allowed here"
	}
	line := lines[at.Line-1]
	spaces := indentOf(line)
	if at.Column > spaces+1 && strings.Contains(line[:min(at.Column-1, len(line))], ": ") {
		return "a second field in one line: write it in a line of its own, or in braces as in source: { file: … }"
	}
	var open []int // the indents at which a field may stand
	for _, before := range lines[:at.Line-1] {
		if text := strings.TrimSpace(before); text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		indent := indentOf(before)
		for len(open) > 0 && open[len(open)-1] >= indent {
			open = open[:len(open)-1]
		}
		open = append(open, indent)
	}
	if len(open) == 0 || slices.Contains(open, spaces) {
		return "a field is not allowed here: check the lines before it"
	}
	near := open[0]
	for _, indent := range open {
		if abs(indent-spaces) <= abs(near-spaces) {
			near = indent
		}
	}
	return fmt.Sprintf("this line is indented by %d spaces, and no field before it is: expected %d, as in the lines before it", spaces, near)
}

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

func abs(n int) int { return max(n, -n) }

// placeOf returns a place without the file name. The reader adds it.
func placeOf(tk *token.Token) Place {
	if tk == nil || tk.Position == nil {
		return Place{}
	}
	return Place{Line: tk.Position.Line, Column: tk.Position.Column}
}

// placeOfNode returns where the text of a node starts. For a mapping, the parser
// gives the position of the colon.
func placeOfNode(node ast.Node) Place {
	switch n := node.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return placeOf(n.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return placeOf(n.Key.GetToken())
	}
	return placeOf(node.GetToken())
}

// targets returns the node that each alias refers to: the last anchor of that
// name before the alias. An alias inside its own anchor has none.
func targets(root ast.Node) map[*ast.AliasNode]ast.Node {
	f := &targetFinder{anchors: map[string]ast.Node{}, targets: map[*ast.AliasNode]ast.Node{}}
	f.visit(root)
	return f.targets
}

type targetFinder struct {
	anchors map[string]ast.Node
	targets map[*ast.AliasNode]ast.Node
}

func (f *targetFinder) visit(node ast.Node) {
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, entry := range n.Values {
			f.visit(entry)
		}
	case *ast.MappingValueNode:
		f.visit(n.Key)
		f.visit(n.Value)
	case *ast.SequenceNode:
		for _, element := range n.Values {
			f.visit(element)
		}
	case *ast.TagNode:
		f.visit(n.Value)
	case *ast.AnchorNode:
		name := n.Name.GetToken().Value
		delete(f.anchors, name)
		f.visit(n.Value)
		f.anchors[name] = n.Value
	case *ast.AliasNode:
		if target, ok := f.anchors[n.Value.GetToken().Value]; ok {
			f.targets[n] = target
		}
	}
}

// unsplit returns the text of an element such as host:9092 in a flow list. The
// lexer reads it as a mapping, because no blank follows the colon. A real mapping
// is returned unchanged.
func unsplit(node ast.Node, n *ast.MappingValueNode) ast.Node {
	name, ok := n.Key.(*ast.StringNode)
	if !ok || n.Start == nil || n.Value == nil {
		return node
	}
	switch n.Value.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
	default:
		return node
	}
	colon, behind := n.Start.Position, n.Value.GetToken()
	plain := name.Token.Type == token.StringType && behind.Type != token.SingleQuoteType && behind.Type != token.DoubleQuoteType
	if !plain || colon.Line != behind.Position.Line || colon.Column+1 != behind.Position.Column {
		return node
	}
	return &ast.StringNode{BaseNode: &ast.BaseNode{}, Token: name.Token, Value: name.Value + ":" + behind.Value}
}

// Parse parses a file. Read its values from Root. Relative paths in it start at
// the directory of name. The error is an [*Error].
func Parse(name string, data []byte, env func(name string) string) (*Document, error) {
	root, problem := parseTree(data)
	if problem != nil {
		problem.Place.File = name
		return nil, errorOf([]Problem{*problem})
	}
	if root == nil {
		return nil, errorOf([]Problem{{Place{File: name}, `the file is empty: name a store under "stores"`}})
	}
	return &Document{Name: name, Dir: filepath.Dir(name), env: env, tree: root, aliases: targets(root), Places: map[string]Place{}}, nil
}

// Root returns the value of the whole document.
func (d *Document) Root() Value { return d.Value(d.tree, "") }

// Err returns all problems as an [*Error], or nil if none exist.
func (d *Document) Err() error {
	return d.ErrWithout(func(string) (string, bool) { return "", false })
}

// Sections reads the members of the root and returns the names of those that are
// present. A name that starts with own belongs to the user.
func (v Value) Sections(fields []Field, own string) (there []string, ok bool) {
	entries, ok := v.topLevel()
	m := Mapping{Fields: fields}
	for _, e := range entries {
		i := slices.Index(m.names(), e.Name)
		switch {
		case strings.HasPrefix(e.Name, own):
		case i >= 0:
			there = append(there, e.Name)
			section := v.Value(e.Value, e.Name)
			v.Places[e.Name] = section.at
			m.Fields[i].Read(section)
		default:
			v.WrongAt(e.At, "unknown section %s: %s", v.unknown(e, m.names()), OneOf(e.Name, m.names()))
		}
	}
	for _, section := range m.Fields {
		if !slices.Contains(there, section.Name) {
			section.fillIn(Value{v.Document, nil, Place{}, section.Name})
		}
	}
	return there, ok
}

// topLevel is Entries with a message that needs no path.
func (v Value) topLevel() ([]Entry, bool) {
	switch v.Node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return v.Entries()
	case nil:
	default:
		v.WrongAt(v.at, "expected sections such as stores:, got %s", describe(v.Node))
	}
	return nil, false
}
