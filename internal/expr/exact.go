package expr

import (
	"bytes"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/semel-dev/semel/internal/decimal"
)

// exact is a number of the body that a double cannot hold, with its text. An expression
// calculates and compares with the double, but copies the text.
type exact struct {
	types.Double
	text []byte
}

// exactly returns a double with the text of the number, if it is not the number.
func exactly(x types.Double, text []byte) ref.Val {
	const surely = 15 // so many digits stay as they are
	if len(text) <= surely && !bytes.ContainsAny(text, "eE") {
		return x
	}
	if written, err := appendDouble(nil, float64(x)); err == nil && same(text, written) {
		return x
	}
	return &exact{x, text}
}

// same reports whether two texts are one number.
func same(a, b []byte) bool {
	n, ok := decimal.Parse(a)
	m, ok2 := decimal.Parse(b)
	return ok && ok2 && n.Negative == m.Negative && n.Exponent == m.Exponent && bytes.Equal(n.Digits, m.Digits)
}

// rounded returns the double of an exact number, or of an optional one, and any other value as
// it is.
func rounded(v ref.Val) ref.Val {
	switch v := v.(type) {
	case *exact:
		return v.Double
	case *types.Optional:
		if v.HasValue() {
			if n, ok := v.GetValue().(*exact); ok {
				return types.OptionalOf(n.Double)
			}
		}
	}
	return v
}

// rounding is a place in the message, or a variable, as functions and conditions see it: CEL knows
// no other numbers than doubles.
type rounding struct {
	interpreter.InterpretableAttribute
}

// Eval implements interpreter.Interpretable.
func (r rounding) Eval(vars interpreter.Activation) ref.Val {
	return rounded(r.InterpretableAttribute.Eval(vars))
}

// Exec implements interpreter.InterpretableV2.
func (r rounding) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	return rounded(r.InterpretableAttribute.Exec(frame))
}

// copies returns the parts of an expression that become a part of its result unchanged.
func copies(e ast.Expr) map[int64]bool {
	parts := map[int64]bool{}
	addCopies(parts, e)
	return parts
}

func addCopies(parts map[int64]bool, e ast.Expr) {
	parts[e.ID()] = true
	switch e.Kind() {
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			addCopies(parts, entry.AsMapEntry().Value())
		}
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			addCopies(parts, element)
		}
	case ast.ComprehensionKind:
		addCopies(parts, e.AsComprehension().IterRange())
		addCopies(parts, e.AsComprehension().LoopStep())
	case ast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case "_?_:_":
			addCopies(parts, call.Args()[1])
			addCopies(parts, call.Args()[2])
		case "_+_": // of lists; the sum of numbers is no copy
			for _, arg := range call.Args() {
				if arg.Kind() == ast.ListKind {
					addCopies(parts, arg)
				}
			}
		case "or", "orValue":
			if call.IsMemberFunction() {
				addCopies(parts, call.Target())
				for _, arg := range call.Args() {
					addCopies(parts, arg)
				}
			}
		}
	}
}
