package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

func keyMapping(k *Key) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		{Name: "id", Doc: "Where a message has its id: a rule, or a list of which the first that is present counts.", Required: true,
			Form: schema.Form{Either: []schema.Form{{Scalar: schema.ScalarRule}, {Element: &schema.Form{Either: ruleForms()}}, {Members: ruleMapping}}},
			Read: func(v schema.Value) { k.Rule = readRule(v) }},
		schema.TextField("scope", &k.Scope, "What the id is unique within.").Means("the pipeline's name"),
		schema.ChoiceField("on_missing", &k.OnMissing, "A message without an id: end the pipeline, put it aside, deliver it under a key made of its place, deliver it under a key made of its content, or give it up (it is lost).",
			"fail", "park", "pass", "hash", "drop").Or("park"),
		schema.TruthField("fingerprint", &k.Fingerprint, "Notice one key used for two different bodies.").Or("false"),
		schema.TruthField("unstable", &k.Unstable, "A rule that tells deliveries apart instead of messages (`offset`, `timestamp`, `delivery-id`…) is meant.").Or("false"),
	}}
}

// ruleForms are the forms of one rule.
func ruleForms() []schema.Form {
	return []schema.Form{{Scalar: schema.ScalarRule}, {Members: ruleMapping}}
}

// ruleMapping is the schema of a rule that has a name; readRule reads it.
func ruleMapping() schema.Mapping {
	rules := func(name, doc string) schema.Field {
		return schema.ListField(name, schema.Form{Scalar: schema.ScalarRule}, nil, doc)
	}
	return schema.KindsOf(
		rules("all", "A composite: all of these, none of which may be missing."),
		rules("hash", "The canonical content of these places in a JSON body; `[.]` is the whole."),
		schema.Field{Name: "template", Doc: "A text with values in it, as in `order-{.order_id}-placed`.", Form: schema.Form{Scalar: schema.ScalarText}},
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
		v.Wrong("a list in a list: write { all: […] } for a composite")
		return nil
	default:
		return textRule(v, "", "", key.ParseRuleForced)
	}
	m := ruleMapping()
	readers := map[string]func(v schema.Value){
		"all": func(v schema.Value) { rule = combined(readRules(v, oneRule), key.All) },
		"hash": func(v schema.Value) {
			var paths []string
			v.List(func(element schema.Value) {
				if path := textRule(element, "hash(", ")", key.ParseRule); path != nil {
					paths = append(paths, strings.TrimSuffix(strings.TrimPrefix(path.String(), "hash("), ")"))
				}
			})
			if len(paths) == 0 {
				return // already reported
			}
			var err error
			if rule, err = key.ParseRule("hash(" + strings.Join(paths, ",") + ")"); err != nil {
				v.Wrong("%v", err)
			}
		},
		"template": func(v schema.Value) { rule = textRule(v, "", "", key.Template) },
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

// textRule reads a rule of one text, with a prefix and a suffix.
func textRule(v schema.Value, before, after string, parse func(string) (*key.Rule, error)) (rule *key.Rule) {
	schema.Quantity(v, &rule, "a rule", func(text string) (*key.Rule, error) {
		rule, err := parse(before + text + after)
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
