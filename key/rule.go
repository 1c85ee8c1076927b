package key

import (
	"errors"
	"slices"
	"strings"
	"sync"
)

// Form is the kind of a rule.
type Form uint8

const (
	// FormPath is a place in the JSON body: ".event_id".
	FormPath Form = iota
	// FormLine is the whole body as bytes: "line".
	FormLine
	// FormHash is the canonical content of the JSON body, or of places in it, perhaps
	// without some members: "hash(.)", "hash(.a,.b)", "hash(. - .received)".
	FormHash
	// FormHeader is a header: "header:NAME".
	FormHeader
	// FormRecordKey is the transport's partitioning key: "record-key".
	FormRecordKey
	// FormMessageID is the message id of the transport: "property:message-id".
	FormMessageID
	// FormTemplate is a text with values in it. See [Template].
	FormTemplate
	// FormFirst is the first of several rules that is present. See [First].
	FormFirst
	// FormAll is the composite of several rules. See [All].
	FormAll
	// FormShaped is a function around a value: "lower(.email)", "number(trim(.id))".
	FormShaped
	// FormUnstable is a property that differs between deliveries of one
	// message. It is refused. See [UnstableError.Insist].
	FormUnstable
)

// Rule says where the id of a message is. It is immutable and safe for
// concurrent use.
type Rule struct {
	form  Form
	text  string
	name  string // of a header, or of an unstable rule
	paths []Path // of FormPath, one; of FormHash
	// without are the members that do not count, for each path of FormHash.
	without [][]Path
	rules   []*Rule  // of FormFirst, FormAll and FormTemplate; of FormShaped, the value
	shapes  []*shape // of FormShaped, the innermost first
	texts   []string // of FormTemplate: one before, between and after the rules
	// readers are the Readers that calls of Key share.
	readers sync.Pool
}

// Form returns the kind of the rule.
func (r *Rule) Form() Form { return r.form }

// Paths returns the places in a JSON body that a rule of FormPath, FormHash or FormShaped
// names, and nil for other forms. The slice must not be changed.
func (r *Rule) Paths() []Path {
	if r.form == FormShaped {
		return r.rules[0].Paths()
	}
	return r.paths
}

// Without returns the members that a rule of FormHash leaves out, and nil for other forms.
func (r *Rule) Without() []Path { return slices.Concat(r.without...) }

// Rules returns the rules that a rule of FormFirst, FormAll or FormTemplate is made of, and the
// value of FormShaped, and nil for other forms. The slice must not be changed.
func (r *Rule) Rules() []*Rule { return r.rules }

// String returns the text of the rule. For a parsed rule, parsing the text
// gives the same rule. The text of a template follows the word template, because
// "header:{.a}" is also the text of a rule for a header. A store keeps the text as the
// owner of a scope, and two rules must not be one owner.
func (r *Rule) String() string { return r.text }

// Ignores returns what may differ between values that the functions of the rule make equal,
// such as "upper and lower case".
func (r *Rule) Ignores() (list []string) {
	for _, part := range r.rules {
		list = append(list, part.Ignores()...)
	}
	for _, s := range r.shapes {
		list = append(list, s.ignores)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// isValue reports whether a rule is a value of the message as it stands there.
func (r *Rule) isValue() bool {
	switch r.form {
	case FormPath, FormHeader, FormRecordKey, FormMessageID:
		return true
	}
	return false
}

// AppendShaped appends the id that the functions of a rule of FormShaped make of the id of a
// value. The error is a [*MissingError] if nothing is left of a text.
func (r *Rule) AppendShaped(dst, id []byte) ([]byte, error) {
	shaped := append(dst, id...)
	for _, s := range r.shapes {
		var isEmpty bool
		if shaped, isEmpty = s.replace(shaped, len(dst)); isEmpty {
			return dst, &MissingError{Rule: r.text, Reason: IsEmpty}
		}
	}
	return shaped, nil
}

var errNoRules = errors.New("key: First and All need at least one rule")

// First returns the rule that tries rules in turn and uses the first that finds an id. A
// rule that looks into a body that is not JSON finds none, and neither does one whose value
// is missing, null, empty, an object or an array. If no rule finds an id, the error is the
// first one that is no [*MissingError], if there is one.
func First(rules ...*Rule) (*Rule, error) {
	if len(rules) == 0 {
		return nil, errNoRules
	}
	return group(FormFirst, "first of ", rules), nil
}

// All returns the rule that makes a composite of the values of all rules. None
// of them may be missing. With one rule it is that rule.
func All(rules ...*Rule) (*Rule, error) {
	if len(rules) == 0 {
		return nil, errNoRules
	}
	return group(FormAll, "all of ", rules), nil
}

func group(form Form, prefix string, rules []*Rule) *Rule {
	if len(rules) == 1 {
		return rules[0]
	}
	texts := make([]string, len(rules))
	for i, r := range rules {
		texts[i] = r.text
	}
	return &Rule{form: form, text: prefix + strings.Join(texts, ", "), rules: append([]*Rule(nil), rules...)}
}

// unstable has the names of rules that differ between deliveries, with the
// reason why they cannot be keys.
var unstable = map[string]string{
	"offset":      "a message that is published again or redriven gets a new offset",
	"origin":      "a message that is published again or redriven gets a new place",
	"delivery-id": "each delivery of a message has another id",
	"timestamp":   "the time changes when a message is published again, and two messages can share one",
	"time":        "the time changes when a message is published again, and two messages can share one",
	"random":      "a value drawn on receipt differs on every delivery",
	"uuid":        "a value drawn on receipt differs on every delivery",
}

// Unstable returns why the rule, or a rule inside it, does not give all
// deliveries of a message the same key. It returns "" if no reason is known.
func (r *Rule) Unstable() string {
	if r.form == FormUnstable {
		return unstable[r.name]
	}
	for _, part := range r.rules {
		if why := part.Unstable(); why != "" {
			return why
		}
	}
	return ""
}

// NeedsPosition reports whether the rule, or a rule inside it, makes an id of the position
// of a message, which not every source has: see [semel.Origin].
func (r *Rule) NeedsPosition() bool {
	if r.form == FormUnstable {
		return r.name == "offset" || r.name == "origin" || r.name == "delivery-id"
	}
	return slices.ContainsFunc(r.rules, (*Rule).NeedsPosition)
}

// ParseRule reads a rule:
//
//	.a.b  .items[0].id  .["odd.name"]   the value at a path: see ParsePath
//	line                                the whole body, as bytes
//	hash(.)  hash(.a,.b)                canonical content: see appendCanonical
//	hash(. - .received - .b.c)          canonical content without some members
//	header:NAME                         the last header of this name; see below
//	record-key                          the partitioning key of the transport
//	property:message-id                 the message id of the transport
//	lower(.a)                           a text in lower case, each character on its own
//	trim(.a)                            a text without white space at its ends
//	nfc(.a)                             a text in Unicode normalization form C
//	number(.a)                          a number, or a text that is one, by its value
//
// Functions are around a path, header:NAME, record-key, property:message-id or another
// function. Values of other types stay as they are, and so does a text in number() that is no
// number. A text that becomes empty is no id.
//
// The case of a header's name counts, unless the headers of the message have none: see
// semel.Message.CaselessHeaders. The rule header:semel-key gives the id of the pipeline that wrote the message, whatever
// bytes it has: it also reads the header semel-key-base64.
//
// Rules that differ between deliveries (offset, origin, delivery-id, timestamp,
// time, random, uuid) are refused with an [*UnstableError]. Other errors are
// [*RuleError].
func ParseRule(text string) (*Rule, error) {
	r, err := parseRule(text)
	if err != nil {
		return nil, err
	}
	if why := r.Unstable(); why != "" {
		return nil, &UnstableError{Rule: text, Why: why, rule: r}
	}
	return r, nil
}

// parseRule is ParseRule without the refusal of unstable rules.
func parseRule(text string) (*Rule, error) {
	p := parser{text: text}
	switch {
	case p.peek() == '.' && !p.done():
		path, err := ParsePath(text)
		if err != nil {
			return nil, err
		}
		return pathRule(path), nil
	case text == "line":
		return &Rule{form: FormLine, text: text}, nil
	case text == "record-key":
		return &Rule{form: FormRecordKey, text: text}, nil
	case text == "property:message-id":
		return &Rule{form: FormMessageID, text: text}, nil
	case unstable[text] != "":
		return &Rule{form: FormUnstable, text: text, name: text}, nil
	case p.take("header:"):
		return p.header()
	case p.take("hash("):
		rule, err := p.hash()
		if fixed, ok := dotted(text); ok && err != nil {
			return nil, p.errorf("a path begins with '.': write %s", fixed)
		}
		return rule, err
	case text == "":
		return nil, p.errorf("the rule is empty: %s", ruleHint)
	case p.take("property:"):
		return nil, p.errorf("the only property is property:message-id")
	}
	if rule, err := parseShaped(&p); rule != nil || err != nil {
		if err == nil && !p.done() {
			err = p.errorf("nothing may follow the ')'")
		}
		if err != nil {
			return nil, err
		}
		return rule, nil
	}
	if path, ok := strings.CutPrefix(text, "$"); ok && strings.HasPrefix(path, ".") {
		return nil, p.errorf("a path begins with '.': write %s", path)
	}
	if _, err := ParsePath("." + text); err == nil {
		return nil, p.errorf("there is no such rule: did you mean .%s? Otherwise %s", text, ruleHint)
	}
	return nil, p.errorf("there is no such rule: %s", ruleHint)
}

func pathRule(path Path) *Rule {
	return &Rule{form: FormPath, text: path.String(), paths: []Path{path}}
}

// dotted returns a rule hash(…) with the dots that its paths lack, if that makes it valid.
func dotted(text string) (fixed string, ok bool) {
	inner, closed := strings.CutSuffix(strings.TrimPrefix(text, "hash("), ")")
	paths := strings.Split(inner, ",")
	for i, path := range paths {
		if path = strings.TrimPrefix(strings.TrimSpace(path), "$"); !strings.HasPrefix(path, ".") {
			path = "." + path
		}
		paths[i] = path
	}
	fixed = "hash(" + strings.Join(paths, ",") + ")"
	p := parser{text: fixed, pos: len("hash(")}
	_, err := p.hash()
	return fixed, closed && err == nil
}

const ruleHint = "use a path that begins with '.', line, hash(.), hash(. - .received), header:NAME, record-key, property:message-id, or lower(), trim(), nfc() or number() around a path"

func (p *parser) header() (*Rule, error) {
	name := p.text[p.pos:]
	if name == "" {
		return nil, p.errorf("the header's name is missing")
	}
	for ; !p.done(); p.pos++ {
		if c := p.peek(); c <= ' ' || c == 0x7F {
			return nil, p.errorf("a header's name has no space or control character")
		}
	}
	return &Rule{form: FormHeader, text: p.text, name: name}, nil
}

func (p *parser) hash() (*Rule, error) {
	r := &Rule{form: FormHash}
	texts := []string{}
	for {
		p.spaces()
		path, err := p.path()
		if err != nil {
			return nil, err
		}
		without, err := p.without(path)
		if err != nil {
			return nil, err
		}
		r.paths, r.without = append(r.paths, path), append(r.without, without)
		texts = append(texts, path.String())
		for _, member := range without {
			texts[len(texts)-1] += " - " + member.String()
		}
		switch {
		case p.take(","):
		case p.take(")"):
			if !p.done() {
				return nil, p.errorf("nothing may follow the ')'")
			}
			r.text = "hash(" + strings.Join(texts, ",") + ")"
			return r, nil
		default:
			return nil, p.errorf("expected ',', ' - ' or ')', found %s; %s", p.here(), quoteHint)
		}
	}
}

// without reads the members that do not count, " - .a - .b.c", and sorts them: their order
// does not matter.
func (p *parser) without(of Path) ([]Path, error) {
	var list []Path
	for p.spaces(); p.take("-"); p.spaces() {
		p.spaces()
		start := p.pos
		member, err := p.path()
		if err != nil {
			return nil, err
		}
		switch last := len(member.steps) - 1; {
		case len(member.steps) <= len(of.steps) || !slices.Equal(member.steps[:len(of.steps)], of.steps):
			p.pos = start
			return nil, p.errorf("%s is not inside %s: write the whole path of the member, as in hash(.a - .a.b)", member, of)
		case member.steps[last].element:
			p.pos = start
			return nil, p.errorf("%s is an element: only members of objects can be left out", member)
		}
		list = append(list, member)
	}
	slices.SortFunc(list, func(a, b Path) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(list, func(a, b Path) bool { return slices.Equal(a.steps, b.steps) }), nil
}
