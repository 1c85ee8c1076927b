package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel/key"
)

func keyMapping(k *Key) mapping {
	return mapping{fields: []field{
		{name: "id", doc: "Where a message has its id: a rule, or a list of which the first that is present counts.", required: true,
			form: form{either: []form{{scalar: aRule}, {element: &form{either: ruleForms()}}, {members: ruleMapping}}},
			read: func(v value) { k.Rule = v.rule() }},
		textField("scope", &k.Scope, "What the id is unique within.").means("the pipeline's name"),
		choiceField("on_missing", &k.OnMissing, "A message without an id: end the pipeline, put it aside, deliver it under a key made of its place, deliver it under a key made of its content, or give it up (it is lost).",
			"fail", "park", "pass", "hash", "drop").or("park"),
		truthField("fingerprint", &k.Fingerprint, "Notice one key used for two different bodies.").or("false"),
		truthField("unstable", &k.Unstable, "A rule that tells deliveries apart instead of messages (`offset`, `timestamp`, `delivery-id`…) is meant.").or("false"),
	}}
}

// ruleForms are the forms of one rule.
func ruleForms() []form { return []form{{scalar: aRule}, {members: ruleMapping}} }

// ruleMapping is what the schema says of a rule that has a name; rule reads it.
func ruleMapping() mapping {
	rules := func(name, doc string) field {
		return listField(name, form{scalar: aRule}, nil, doc)
	}
	m := kindsOf(
		rules("all", "A composite: all of these, none of which may be missing."),
		rules("hash", "The canonical content of these places in a JSON body; `[.]` is the whole."),
		field{name: "template", doc: "A text with values in it, as in `order-{.order_id}-placed`.", form: form{scalar: aText}},
	)
	m.planned = []string{"cel"}
	return m
}

// rule reads a rule; nil if it is wrong.
func (v value) rule() *key.Rule {
	switch v.node.(type) {
	case nil:
		return nil
	case *ast.SequenceNode:
		return combined(v.rules(value.oneRule), key.First)
	}
	return v.oneRule()
}

// oneRule reads a rule that is no list.
func (v value) oneRule() (rule *key.Rule) {
	switch v.node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
	case *ast.SequenceNode:
		v.wrong("a list in a list: write { all: […] } for a composite")
		return nil
	default:
		return v.textRule("", "", key.ParseRuleForced)
	}
	m := ruleMapping()
	readers := map[string]func(v value){
		"all": func(v value) { rule = combined(v.rules(value.oneRule), key.All) },
		"hash": func(v value) {
			var paths []string
			v.list(func(element value) {
				if path := element.textRule("hash(", ")", key.ParseRule); path != nil {
					paths = append(paths, strings.TrimSuffix(strings.TrimPrefix(path.String(), "hash("), ")"))
				}
			})
			if len(paths) == 0 {
				return // which was reported
			}
			var err error
			if rule, err = key.ParseRule("hash(" + strings.Join(paths, ",") + ")"); err != nil {
				v.wrong("%v", err)
			}
		},
		"template": func(v value) { rule = v.textRule("", "", key.Template) },
	}
	for i := range m.fields {
		m.fields[i].read = readers[m.fields[i].name]
	}
	v.mapping(m)
	return rule
}

// rules reads a list of rules; nil if one is wrong.
func (v value) rules(read func(value) *key.Rule) []*key.Rule {
	var list []*key.Rule
	fine := true
	v.list(func(element value) {
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
		return nil // reported
	}
	rule, err := combine(rules...)
	if err != nil {
		return nil // only of no rules
	}
	return rule
}

// textRule reads a rule of one text, with something before and behind it.
func (v value) textRule(before, after string, parse func(string) (*key.Rule, error)) (rule *key.Rule) {
	quantity(v, &rule, "a rule", func(text string) (*key.Rule, error) {
		rule, err := parse(before + text + after)
		if err != nil {
			return nil, ruleProblem(err)
		}
		return rule, nil
	})
	return rule
}

// ruleProblem is what is wrong with a rule without its text, which a reference
// may have given.
func ruleProblem(err error) error {
	var wrong *key.RuleError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s", wrong.Problem)
	}
	return err
}
