// Package expr compiles the filter and the map of a pipeline, which are expressions in
// CEL. An expression has no clock and no randomness, so a message that comes again
// has the same outcome.
package expr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	"cel.dev/cel-go/interpreter"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/jsontext"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// recordSize is the size of the largest record for the estimate of a cost: the
	// default limit of a Kafka topic.
	recordSize = 1 << 20
	// mostKept is the number of members up to which the memory of an object is kept.
	mostKept = 1000
	// mostCost is how many steps an expression may take for a message. The steps are
	// counted only if an expression can take more for the largest record: counting takes
	// longer than a simple expression.
	mostCost = 50_000_000
	// interruptEvery is how many rounds of a loop pass until a long expression looks
	// whether its context has ended.
	interruptEvery = 100
	// refusedCost is how many steps are refused for a record of usualSize.
	refusedCost, usualSize = 1_000_000_000, 4 << 10
)

// Compile compiles the filter and the map of a pipeline. An empty text leaves one out.
// tables has the tables that they may name. The error says what is wrong with the texts, and
// where.
func Compile(filter, mapping string, tables map[string]Rows) (pipeline.FilterMap, error) {
	p := &program{tables: tables}
	var errs [2]error
	if filter != "" {
		p.filter, errs[0] = compile("filter", filter, tables)
	}
	if mapping != "" {
		p.mapping, errs[1] = compile("map", mapping, tables)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return p.run, nil
}

// environment declares the names of an expression. Its libraries have fixed versions:
// the outcome of an expression must not change with the module.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewCustomEnv(
		cel.StdLib(), cel.OptionalTypes(cel.OptionalTypesVersion(1)), ext.Strings(ext.StringsVersion(4)),
		cel.Variable("value", cel.DynType), cel.Variable("key", cel.StringType), cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("time", cel.TimestampType), cel.Variable("topic", cel.StringType), cel.Variable("partition", cel.IntType), cel.Variable("offset", cel.IntType),
		cel.ParserRecursionLimit(100), cel.ParserExpressionSizeLimit(64<<10),
	)
})

const names = "the names are value, key, headers, time, topic, partition and offset"

// expression is a compiled expression.
type expression struct {
	cel.Program
	field, text string
	long        bool // it can take so many steps that they are counted
}

// compile compiles the text of a field.
func compile(field, text string, tables map[string]Rows) (*expression, error) {
	env, err := environment()
	if err == nil && len(tables) > 0 {
		env, err = env.Extend(cel.Variable(tablesName, cel.MapType(cel.StringType, cel.DynType)))
	}
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, problem(issues, len(tables) > 0)
	}
	if err := checkTables(ast, tables); err != nil {
		return nil, err
	}
	if is := ast.OutputType(); field == "filter" && !is.IsExactType(types.BoolType) && !is.IsExactType(types.DynType) {
		return nil, fmt.Errorf("it is of the type %s: a filter is a condition, such as value.status == \"paid\"", is)
	}
	usual, err := env.EstimateCost(ast, sizes(usualSize))
	if err != nil {
		return nil, err
	}
	if usual.Max > refusedCost {
		return nil, fmt.Errorf("it may take too long: up to %d steps for a message of 4 KiB, and %d are allowed. Leave out a loop inside a loop, or do this in a program", usual.Max, refusedCost)
	}
	largest, err := env.EstimateCost(ast, sizes(recordSize))
	if err != nil {
		return nil, err
	}
	opts := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), cel.CustomDecoratorV2(literals(ast.NativeRep()))}
	long := largest.Max > mostCost
	if long {
		opts = append(opts, cel.CostLimit(mostCost), cel.InterruptCheckFrequency(interruptEvery))
	}
	program, err := env.Program(ast, opts...)
	if err != nil {
		return nil, err
	}
	return &expression{program, field, text, long}, nil
}

// problem says what is wrong with an expression, and where.
func problem(issues *cel.Issues, tables bool) error {
	var list []string
	for _, e := range issues.Errors() {
		text, _, _ := strings.Cut(e.Message, " (in container")
		if strings.HasPrefix(text, "undeclared reference") {
			text += ": " + names
			if tables {
				text += ", and tables.NAME"
			} else if strings.Contains(text, "'"+tablesName+"'") {
				text += ". The pipeline has no tables: write them in the field tables"
			}
		}
		where := fmt.Sprintf("column %d", e.Location.Column()+1)
		if line := e.Location.Line(); line > 1 {
			where = fmt.Sprintf("line %d, %s", line, where)
		}
		list = append(list, where+": "+text)
	}
	return errors.New(strings.Join(list, "; "))
}

// sizes estimates each value as a record of this size.
type sizes uint64

// EstimateSize implements cost.Estimator.
func (s sizes) EstimateSize(cost.AstNode) *cost.SizeEstimate {
	return &cost.SizeEstimate{Min: 0, Max: uint64(s)}
}

// EstimateCallCost implements cost.Estimator.
func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// program is the filter and the map of a pipeline. Each of them may be nil.
type program struct {
	filter, mapping *expression
	tables          map[string]Rows
	messages        sync.Pool // of *message
}

// run implements pipeline.FilterMap.
func (p *program) run(ctx context.Context, d pipeline.Delivery) (body []byte, pass bool, err error) {
	m, _ := p.messages.Get().(*message)
	if m == nil {
		m = &message{tables: p.tables}
		m.rows.m, m.named.entries = m, &m.rows
		if m.finder, err = key.NewFinder(nil, nil); err != nil {
			return nil, false, err
		}
	}
	m.delivery = d
	defer func() {
		m.clear()
		p.messages.Put(m)
	}()
	if p.filter != nil {
		v, err := p.filter.value(ctx, m)
		if err != nil {
			return nil, false, err
		}
		is, ok := v.(types.Bool)
		if !ok {
			return nil, false, p.filter.failed(fmt.Errorf("it is of the type %s, not a condition", v.Type().TypeName()))
		}
		if !is {
			return nil, false, nil
		}
	}
	if p.mapping == nil {
		return d.Body, true, nil
	}
	v, err := p.mapping.value(ctx, m)
	if err != nil {
		return nil, false, err
	}
	if m.out, err = appendJSON(m.out[:0], v); err != nil {
		return nil, false, p.mapping.failed(err)
	}
	return slices.Clone(m.out), true, nil
}

// value evaluates an expression for a message.
func (e *expression) value(ctx context.Context, m *message) (ref.Val, error) {
	eval := e.Eval
	if e.long {
		eval = func(m any) (ref.Val, *cel.EvalDetails, error) { return e.ContextEval(ctx, m) }
	}
	v, _, err := eval(m)
	if m.rows.err != nil { // the row was asked for, even if the value does not depend on it
		return nil, m.rows.err
	}
	if stopped, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && stopped.Cause == interpreter.CostLimitExceeded {
		err = fmt.Errorf("it takes more than %d steps for this message", mostCost)
	}
	if errors.Is(err, interpreter.InterruptError{}) {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, e.failed(err)
	}
	return v, nil
}

// failed names the expression that failed.
func (e *expression) failed(err error) error {
	return fmt.Errorf("%s %s: %w", e.field, e.text, err)
}

// message is a message as the names of an expression. A value is made when it is used.
type message struct {
	delivery pipeline.Delivery
	finder   *key.Finder
	body     ref.Val // nil until it is used
	tables   map[string]Rows
	rows     rows
	named    mapping // the rows by name
	// root, top and out are memory that the next message uses again.
	root object
	top  mapping
	out  []byte
}

var _ cel.Activation = (*message)(nil)

func (m *message) clear() {
	m.delivery, m.body = pipeline.Delivery{}, nil
	clear(m.rows.found)
	m.rows.found, m.rows.err = m.rows.found[:0], nil
	clear(m.root.members)
	m.root = object{members: m.root.members[:0]}
	if cap(m.root.members) > mostKept {
		m.root.members = nil
	}
	if cap(m.out) > recordSize {
		m.out = nil
	}
}

// Parent implements cel.Activation.
func (m *message) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (m *message) ResolveName(name string) (any, bool) {
	d := &m.delivery
	switch name {
	case "value":
		if m.body == nil {
			m.body = m.value()
		}
		return m.body, true
	case tablesName:
		return &m.named, m.tables != nil
	case "key":
		return types.String(key.AppendText(nil, []byte(d.Key.ID))), true
	case "headers":
		return headersOf(&d.Message), true
	case "time":
		if d.Time.IsZero() {
			return types.NewErr("the message has no time"), true
		}
		return types.Timestamp{Time: d.Time}, true
	case "topic":
		return types.String(d.Origin.Source), true
	case "partition":
		return types.Int(d.Origin.Partition), true
	case "offset":
		return types.Int(d.Origin.Offset), true
	}
	return nil, false
}

// value returns the body. A message without one has the value null.
func (m *message) value() ref.Val {
	body := m.delivery.Body
	if len(body) == 0 {
		return types.NullValue
	}
	if err := m.finder.Find(body); err != nil {
		return types.NewErr("the body is not JSON: %v", err)
	}
	text := jsontext.Trim(body)
	if text[0] == '{' {
		m.root.text, m.top = text, mapping{&m.root}
		return &m.top
	}
	return valueOf(text)
}

// headersOf returns headers as a map. Of headers with the same name the last one counts,
// and case does not count if the protocol has none, as in key rules.
func headersOf(m *semel.Message) ref.Val {
	f := &fields{caseless: m.CaselessHeaders}
	for _, h := range m.Headers {
		f.set(types.String(h.Name), types.String(h.Value))
	}
	return &mapping{f}
}
