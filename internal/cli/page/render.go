package page

import (
	"bytes"
	"fmt"
	"html"
	"io/fs"
	"reflect"
	"text/template/parse"
)

// templates are templates in the language of html/template, without calls of methods. That package
// calls methods by their names, so the linker would keep every method of the whole program, which
// makes it larger by half. Every value is escaped for text and for quoted attributes; a test checks
// that it stands nowhere else, and that a value in a link is escaped for a query too.
type templates struct {
	trees map[string]*parse.Tree
	funcs map[string]func(args []any) any
}

// parseTemplates reads all templates of a directory.
func parseTemplates(files fs.FS, pattern string, funcs map[string]func(args []any) any) (*templates, error) {
	t := &templates{trees: map[string]*parse.Tree{}, funcs: funcs}
	known := map[string]any{}
	for name := range funcs {
		known[name] = true
	}
	names, err := fs.Glob(files, pattern)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		trees, err := parse.Parse(name[len("assets/"):], string(text), "", "", known)
		if err != nil {
			return nil, err
		}
		for name, tree := range trees {
			t.trees[name] = tree
		}
	}
	return t, nil
}

// render writes a template with its data.
func (t *templates) render(out *bytes.Buffer, name string, data any) (err error) {
	tree := t.trees[name]
	if tree == nil {
		return fmt.Errorf("there is no template %q", name)
	}
	r := &rendering{templates: t, out: out}
	r.vars = append(r.vars, variable{"$", data})
	return r.walk(data, tree.Root)
}

// rendering is one use of a template.
type rendering struct {
	*templates
	out  *bytes.Buffer
	vars []variable
}

type variable struct {
	name  string
	value any
}

// walk writes a node.
func (r *rendering) walk(dot any, node parse.Node) error {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, child := range n.Nodes {
			if err := r.walk(dot, child); err != nil {
				return err
			}
		}
		return nil
	case *parse.TextNode:
		r.out.Write(n.Text)
		return nil
	case *parse.CommentNode:
		return nil
	case *parse.ActionNode:
		value, err := r.pipe(dot, n.Pipe)
		if err == nil && len(n.Pipe.Decl) == 0 {
			r.out.WriteString(html.EscapeString(fmt.Sprint(value)))
		}
		return err
	case *parse.IfNode:
		return r.branch(dot, &n.BranchNode, false)
	case *parse.WithNode:
		return r.branch(dot, &n.BranchNode, true)
	case *parse.RangeNode:
		return r.each(dot, n)
	case *parse.TemplateNode:
		var data any
		if n.Pipe != nil {
			var err error
			if data, err = r.pipe(dot, n.Pipe); err != nil {
				return err
			}
		}
		return r.render(r.out, n.Name, data)
	}
	return fmt.Errorf("%s: a template must not have %T", node, node)
}

// branch writes one list of an if or a with.
func (r *rendering) branch(dot any, n *parse.BranchNode, with bool) error {
	defer r.forget(len(r.vars))
	value, err := r.pipe(dot, n.Pipe)
	switch {
	case err != nil:
		return err
	case !isTrue(value):
		return r.walk(dot, n.ElseList)
	case with:
		dot = value
	}
	return r.walk(dot, n.List)
}

// each writes the list of a range for each element of a slice.
func (r *rendering) each(dot any, n *parse.RangeNode) error {
	mark := len(r.vars)
	defer r.forget(mark)
	value, err := r.evaluate(dot, n.Pipe)
	if err != nil {
		return err
	}
	list := reflect.ValueOf(value)
	if !list.IsValid() || list.Kind() == reflect.Slice && list.Len() == 0 {
		return r.walk(dot, n.ElseList)
	}
	if list.Kind() != reflect.Slice {
		return fmt.Errorf("%s: %T is no list", n.Pipe, value)
	}
	for i := range list.Len() {
		r.forget(mark)
		element := list.Index(i).Interface()
		switch decl := n.Pipe.Decl; len(decl) {
		case 1:
			r.vars = append(r.vars, variable{decl[0].Ident[0], element})
		case 2:
			r.vars = append(r.vars, variable{decl[0].Ident[0], i}, variable{decl[1].Ident[0], element})
		}
		if err := r.walk(element, n.List); err != nil {
			return err
		}
	}
	return nil
}

// forget ends the scope of variables.
func (r *rendering) forget(mark int) { r.vars = r.vars[:mark] }

// pipe evaluates a pipe, and declares its variable.
func (r *rendering) pipe(dot any, n *parse.PipeNode) (any, error) {
	value, err := r.evaluate(dot, n)
	if err == nil && len(n.Decl) == 1 {
		r.vars = append(r.vars, variable{n.Decl[0].Ident[0], value})
	}
	return value, err
}

// evaluate returns the value of a pipe.
func (r *rendering) evaluate(dot any, n *parse.PipeNode) (any, error) {
	if len(n.Cmds) != 1 {
		return nil, fmt.Errorf("%s: a template must not have |", n)
	}
	args := n.Cmds[0].Args
	of, call := args[0].(*parse.IdentifierNode)
	if !call {
		if len(args) > 1 {
			return nil, fmt.Errorf("%s: only functions have arguments", n)
		}
		return r.argument(dot, args[0])
	}
	var values []any
	for _, arg := range args[1:] {
		value, err := r.argument(dot, arg)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return r.funcs[of.Ident](values), nil
}

// argument returns the value of an operand.
func (r *rendering) argument(dot any, node parse.Node) (any, error) {
	switch n := node.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.FieldNode:
		return fields(dot, n.Ident)
	case *parse.VariableNode:
		for i := len(r.vars) - 1; i >= 0; i-- {
			if r.vars[i].name == n.Ident[0] {
				return fields(r.vars[i].value, n.Ident[1:])
			}
		}
	case *parse.ChainNode:
		value, err := r.argument(dot, n.Node)
		if err != nil {
			return nil, err
		}
		return fields(value, n.Field)
	case *parse.PipeNode:
		return r.evaluate(dot, n)
	case *parse.IdentifierNode:
		return r.funcs[n.Ident](nil), nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.NumberNode:
		return int(n.Int64), nil
	case *parse.BoolNode:
		return n.True, nil
	}
	return nil, fmt.Errorf("%s: a template must not have %T here", node, node)
}

// fields returns a field of a field of a value.
func fields(value any, names []string) (any, error) {
	for _, name := range names {
		of := reflect.ValueOf(value)
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct {
			return nil, fmt.Errorf("%T has no field %s", value, name)
		}
		field := of.FieldByName(name)
		if !field.IsValid() {
			return nil, fmt.Errorf("%T has no field %s", value, name)
		}
		value = field.Interface()
	}
	return value, nil
}

// isTrue reports whether a value is not the zero of its type, or an empty list. A structure is true.
func isTrue(value any) bool {
	of := reflect.ValueOf(value)
	switch of.Kind() {
	case reflect.Invalid:
		return false
	case reflect.Slice:
		return of.Len() > 0
	case reflect.Struct:
		return true
	}
	return !of.IsZero()
}
