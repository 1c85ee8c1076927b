package config

import (
	"errors"
	"fmt"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// defaultOnMissing is what happens to a message without an id.
const defaultOnMissing = "park"

func keyMapping(k *Key) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		{Name: "id", Doc: "Where a message has its id. The first rule of a list that finds an id counts.", Required: true,
			Form: schema.Form{Either: []schema.Form{{Scalar: schema.ScalarRule}, {Element: &schema.Form{Either: ruleForms()}}, namedRule()}},
			Read: func(v schema.Value) { k.Rule = readRule(v) }},
		keepField(k),
		schema.TextField("scope", &k.Scope, "The scope in which the id is unique.").Means("the pipeline's name"),
		schema.TruthField("same_scope", &k.SameScope, "The scope belongs to another key rule or pipeline, and equal ids mean the same message. Without it, the pipeline does not start.").Or("false"),
		schema.ChoiceField("on_missing", &k.OnMissing, "A message without an id: `fail` ends the pipeline, `park` parks the message, `pass` makes a key from its position, if the source has positions, `hash` makes a key from its content, `drop` loses it.",
			"fail", "park", "pass", "hash", "drop").Or(defaultOnMissing),
		schema.TruthField("unstable", &k.Unstable, "Allow a rule that differs between deliveries of one message, such as `offset`, `timestamp` or `delivery-id`. `offset` and `delivery-id` need a source with positions.").Or("false"),
	}}
}

// ruleForms are the forms of one rule.
func ruleForms() []schema.Form {
	return []schema.Form{{Scalar: schema.ScalarRule}, namedRule()}
}

// namedRule is the form of a rule that has a name.
func namedRule() schema.Form { return schema.Form{Members: ruleMapping, Title: "Rule with a name"} }

// ruleMapping is the schema of a rule that has a name; readRule reads it.
func ruleMapping() schema.Mapping {
	rules := func(name, doc string) schema.Field {
		return schema.ListField(name, schema.Form{Scalar: schema.ScalarRule}, nil, doc)
	}
	return schema.KindsOf(
		rules("all", "A composite of all these rules. None may be missing."),
		schema.Field{Name: "template", Doc: "A text with values, as in `order-{.order_id}-placed`, which is `order-7-placed` for 7. Texts stand without quotes.", Form: schema.Form{Scalar: schema.ScalarText}},
	)
}

// readRule reads a rule. It returns nil if the rule is invalid.
func readRule(v schema.Value) *key.Rule {
	switch v.Node.(type) {
	case nil:
		return nil
	case *ast.SequenceNode:
		return combined(readRules(v, oneRule), key.First)
	}
	return oneRule(v)
}

// oneRule reads a rule that is not a list.
func oneRule(v schema.Value) (rule *key.Rule) {
	switch v.Node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
	case *ast.SequenceNode:
		v.Wrong("a list cannot contain a list: write { all: […] } for a composite")
		return nil
	default:
		return textRule(v, unstableRule)
	}
	m := ruleMapping()
	readers := map[string]func(v schema.Value){
		"all":      func(v schema.Value) { rule = combined(readRules(v, oneRule), key.All) },
		"template": func(v schema.Value) { rule = textRule(v, key.Template) },
	}
	for i := range m.Fields {
		m.Fields[i].Read = readers[m.Fields[i].Name]
	}
	v.Mapping(m)
	return rule
}

// readRules reads a list of rules. It returns nil if one of them is invalid.
func readRules(v schema.Value, read func(schema.Value) *key.Rule) []*key.Rule {
	var list []*key.Rule
	fine := true
	v.List(func(element schema.Value) {
		rule := read(element)
		fine = fine && rule != nil
		list = append(list, rule)
	})
	if !fine {
		return nil
	}
	return list
}

func combined(rules []*key.Rule, combine func(...*key.Rule) (*key.Rule, error)) *key.Rule {
	if len(rules) == 0 {
		return nil // already reported
	}
	rule, err := combine(rules...)
	if err != nil {
		return nil // fails only if there are no rules
	}
	return rule
}

// textRule reads a rule of one text.
// unstableRule parses a rule that may differ between deliveries: lint says what that costs.
func unstableRule(text string) (*key.Rule, error) {
	rule, err := key.ParseRule(text)
	if unstable, ok := errors.AsType[*key.UnstableError](err); ok {
		return unstable.Insist(), nil
	}
	return rule, err
}

func textRule(v schema.Value, parse func(string) (*key.Rule, error)) (rule *key.Rule) {
	schema.Quantity(v, &rule, "a rule", func(text string) (*key.Rule, error) {
		rule, err := parse(text)
		if err != nil {
			return nil, RuleProblem(err)
		}
		return rule, nil
	})
	return rule
}

// RuleProblem returns the error without the rule's text, which may come from a
// reference.
func RuleProblem(err error) error {
	var wrong *key.RuleError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s", wrong.Problem)
	}
	return err
}
