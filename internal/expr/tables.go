package expr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/jsontext"
)

// Rows returns the row of a message in a table, which is JSON, or nil.
type Rows = func(*semel.Message) ([]byte, error)

// tablesName is the name under which an expression finds the rows. optSelect is the
// function that CEL calls for tables.?name.
const tablesName, optSelect = "tables", "_?._"

// checkTables refuses an expression that uses tables otherwise than by name: which rows a
// message needs must be visible.
func checkTables(tree *cel.Ast, tables map[string]Rows) error {
	list := strings.Join(slices.Sorted(maps.Keys(tables)), ", ")
	uses := ast.MatchDescendants(ast.NavigateAST(tree.NativeRep()), func(e ast.NavigableExpr) bool {
		return e.Kind() == ast.IdentKind && e.AsIdent() == tablesName
	})
	for _, use := range uses {
		name := ""
		if parent, ok := use.Parent(); ok && parent.Kind() == ast.SelectKind {
			name = parent.AsSelect().FieldName()
		} else if ok && parent.Kind() == ast.CallKind && parent.AsCall().FunctionName() == optSelect {
			name, _ = parent.AsCall().Args()[1].AsLiteral().Value().(string)
		}
		at := tree.NativeRep().SourceInfo().GetStartLocation(use.ID())
		where := fmt.Sprintf("column %d", at.Column()+1)
		if at.Line() > 1 {
			where = fmt.Sprintf("line %d, %s", at.Line(), where)
		}
		if _, ok := tables[name]; name != "" && !ok {
			return fmt.Errorf("%s: there is no table %s: the tables are %s", where, name, list)
		} else if !ok {
			return fmt.Errorf("%s: name a table, as in tables.%s", where, slices.Sorted(maps.Keys(tables))[0])
		}
	}
	return nil
}

// rows are the rows of a message by the name of their table. A row is looked up when an
// expression asks for it. Filter and map see the same one.
type rows struct {
	m     *message
	found []foundRow
	// err says why a row is missing.
	err error
}

type foundRow struct {
	table string
	val   ref.Val // nil: no row
}

var _ entries = (*rows)(nil)

func (r *rows) find(name string) (ref.Val, bool) {
	for i := range r.found {
		if r.found[i].table == name {
			return r.found[i].val, r.found[i].val != nil
		}
	}
	row, err := r.m.tables[name](&r.m.delivery.Message)
	if err != nil {
		r.err = err
		return types.WrapErr(err), false
	}
	var val ref.Val
	if row != nil {
		val = r.m.rowValue(name, row)
	}
	r.found = append(r.found, foundRow{name, val})
	return val, val != nil
}

// rowValue returns a row as a value.
func (m *message) rowValue(name string, row []byte) ref.Val {
	if err := m.finder.Find(row); err != nil {
		return types.NewErr("the row of table %s is not JSON: %v", name, err)
	}
	return valueOf(jsontext.Trim(row))
}

// An expression names its tables, so it asks for no others.
func (r *rows) count() int               { return 0 }
func (r *rows) entry(int) (k, v ref.Val) { return types.WrapErr(errNoList), nil }

var errNoList = errors.New("tables are not a list")
