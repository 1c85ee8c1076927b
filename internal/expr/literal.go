package expr

import (
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// literal evaluates a map that an expression makes to one that keeps its order.
type literal struct {
	id         int64
	keys, vals []interpreter.InterpretableV2
	optional   []bool // entries that are left out if they have no value
}

// literals returns a decorator that replaces the maps which the expression makes, and rounds the
// numbers with which it calculates.
func literals(expr *ast.AST) interpreter.InterpretableDecoratorV2 {
	optional := map[int64][]bool{}
	ast.PostOrderVisit(expr.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.MapKind {
			return
		}
		var list []bool
		for _, entry := range e.AsMap().Entries() {
			list = append(list, entry.AsMapEntry().IsOptional())
		}
		optional[e.ID()] = list
	}))
	unchanged := copies(expr.Expr())
	return func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		if place, ok := i.(interpreter.InterpretableAttribute); ok {
			if rounds, ok := place.(rounding); ok { // it was extended by a step
				place = rounds.InterpretableAttribute
			}
			if unchanged[i.ID()] {
				return place, nil
			}
			return rounding{place}, nil
		}
		made, ok := i.(interpreter.InterpretableConstructor)
		if !ok || made.Type() != types.MapType {
			return i, nil
		}
		l := &literal{id: made.ID(), optional: optional[made.ID()]}
		all := made.InitVals() // key and value of each entry
		for at := 0; at+1 < len(all); at += 2 {
			l.keys, l.vals = append(l.keys, all[at]), append(l.vals, all[at+1])
		}
		if len(l.keys) != len(l.optional) {
			return i, nil
		}
		return l, nil
	}
}

// ID implements interpreter.Interpretable.
func (l *literal) ID() int64 { return l.id }

// Eval implements interpreter.Interpretable.
func (l *literal) Eval(vars interpreter.Activation) ref.Val {
	return l.made(func(i interpreter.InterpretableV2) ref.Val { return i.Eval(vars) })
}

// Exec implements interpreter.InterpretableV2.
func (l *literal) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return l.made(func(i interpreter.InterpretableV2) ref.Val { return i.Exec(frame) })
}

func (l *literal) made(value func(interpreter.InterpretableV2) ref.Val) ref.Val {
	f := &fields{keys: make([]ref.Val, 0, len(l.keys)), vals: make([]ref.Val, 0, len(l.keys))}
	for i := range l.keys {
		k := value(l.keys[i])
		if types.IsError(k) {
			return k
		}
		v := value(l.vals[i])
		if types.IsError(v) {
			return v
		}
		if l.optional[i] {
			o, ok := v.(*types.Optional)
			switch {
			case !ok:
				return types.NewErr("cannot initialize optional entry '%v' from non-optional value %v", k, v)
			case !o.HasValue():
				continue
			}
			v = o.GetValue()
		}
		f.set(k, v)
	}
	return &mapping{f}
}
