// Package envelope takes the message out of a message that another system wrapped: a
// notification of SNS, an event of CloudEvents, a change of Debezium, a task of Celery.
package envelope

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/key"
)

// Unwrapper takes messages out of messages. Parse returns one. It is safe for concurrent use.
type Unwrapper struct {
	text  string
	steps []step
	key   *key.Rule
}

// step is a preset, or one step of a list.
type step struct {
	name string
	do   func(m *semel.Message) error
	// exception is a case that the key of a preset does not tell apart, or "".
	exception string
}

// Parse returns the Unwrapper of a list of steps. Each of them works on what the one before it
// has found:
//
//	.a.b     the value at a path of a JSON document: see key.ParsePath. A string becomes its text.
//	json     a text that is a JSON document. A string becomes its text.
//	base64   a text in base64 becomes the bytes that it encodes.
//	sns …    a preset; see Presets
func Parse(steps []string) (*Unwrapper, error) {
	if len(steps) == 0 {
		return nil, errors.New("it has no step: leave it out")
	}
	u := &Unwrapper{text: strings.Join(steps, ", ")}
	for i, text := range steps {
		s, rule, err := parseStep(text)
		if err != nil {
			return nil, err
		}
		s.name = text
		if len(steps) > 1 {
			s.name = fmt.Sprintf("step %d, %s", i+1, text)
		}
		u.steps = append(u.steps, s)
		u.key = rule // of the last step: the id of an outer envelope may be new for each copy
	}
	return u, nil
}

func parseStep(text string) (step, *key.Rule, error) {
	switch text {
	case "json":
		return step{do: readJSON}, nil, nil
	case "base64":
		return step{do: readBase64}, nil, nil
	}
	for _, p := range presets() {
		if p.name == text {
			find, err := fieldsOf(p.paths)
			if err != nil {
				return step{}, nil, err
			}
			rule, err := p.rule()
			return step{do: func(m *semel.Message) error { return p.open(m, find) }, exception: p.exception}, rule, err
		}
	}
	path, err := key.ParsePath(text)
	if err != nil || text == "." {
		hint := ""
		if near, ok := diagnose.Nearest(text, append(Presets(), "json", "base64")); ok {
			hint = ": did you mean " + near + "?"
		} else if _, err := key.ParsePath("." + text); err == nil && text != "" && text != "." {
			hint = ": write ." + text + " for a path"
		}
		return step{}, nil, fmt.Errorf("%q is no step%s; a step is a path such as .Message, json, base64, or one of %s", text, hint, strings.Join(Presets(), ", "))
	}
	return step{do: newPathStep(path).do}, nil, nil
}

// String returns the steps as they were written.
func (u *Unwrapper) String() string { return u.text }

// Key returns the key rule of a pipeline that has none: that of the last step. It is nil if that
// step knows none.
func (u *Unwrapper) Key() *key.Rule { return u.key }

// Exceptions are cases that the key of the last step cannot tell apart, if the pipeline has that key.
func (u *Unwrapper) Exceptions(rule *key.Rule) []string {
	if u == nil || rule != u.key || u.steps[len(u.steps)-1].exception == "" {
		return nil
	}
	return []string{u.steps[len(u.steps)-1].exception}
}

// Unwrap returns the message in m. It changes no memory of m. The headers of m stay. The error
// names the step that failed.
func (u *Unwrapper) Unwrap(m semel.Message) (semel.Message, error) {
	if u == nil {
		return m, nil
	}
	for _, s := range u.steps {
		if err := s.do(&m); err != nil {
			return semel.Message{}, fmt.Errorf("unwrap: %s: %w", s.name, err)
		}
	}
	return m, nil
}

// pathStep finds the value at a path.
type pathStep struct {
	path    key.Path
	finders sync.Pool // of *key.Finder
}

func newPathStep(path key.Path) *pathStep { return &pathStep{path: path} }

func (p *pathStep) do(m *semel.Message) error {
	finder, ok := p.finders.Get().(*key.Finder)
	if !ok {
		var err error
		if finder, err = key.NewFinder([]key.Path{p.path}, nil); err != nil {
			return err
		}
	}
	defer p.finders.Put(finder)
	if err := finder.Find(m.Body); err != nil {
		return notJSON(m.Body, err)
	}
	raw, kind := finder.Raw(0)
	switch kind {
	case key.Missing, key.Null:
		return lacks(m.Body, p.path.String(), kind)
	case key.String:
		text, err := textOf(raw)
		m.Body = text
		return err
	}
	m.Body = raw
	return nil
}

// lacks says that a document has no value at a path, and lists the members that it has instead.
func lacks(document []byte, path string, kind key.Kind) error {
	if kind == key.Null {
		return fmt.Errorf("%s is null", path)
	}
	has, near := diagnose.Member(document, path)
	switch {
	case near != "":
		return fmt.Errorf("%s is missing: %s: did you mean %s?", path, has, near)
	case has != "":
		return fmt.Errorf("%s is missing: %s", path, has)
	}
	return fmt.Errorf("%s is missing", path)
}

// notJSON says why a text is no JSON document.
func notJSON(text []byte, err error) error {
	if text == nil {
		return errors.New("the message has no body")
	}
	if is := diagnose.Body(text, err); is != "" {
		return errors.New(is)
	}
	if syntax, ok := errors.AsType[*key.SyntaxError](err); ok {
		return fmt.Errorf("it is not JSON: %s at byte %d", syntax.Problem, syntax.Offset)
	}
	return err
}

// readJSON reads the body as a JSON document. A string becomes its text.
func readJSON(m *semel.Message) error {
	finder, err := key.NewFinder(nil, nil)
	if err != nil {
		return err
	}
	if err := finder.Find(m.Body); err != nil {
		return notJSON(m.Body, err)
	}
	body := bytes.TrimSpace(m.Body)
	if body[0] == '"' {
		body, err = textOf(body)
	}
	m.Body = body
	return err
}

// readBase64 decodes a body in base64, with either alphabet, with or without padding.
func readBase64(m *semel.Message) error {
	if m.Body == nil {
		return errors.New("the message has no body")
	}
	body, err := fromBase64(m.Body)
	m.Body = body
	return err
}

func fromBase64(text []byte) ([]byte, error) {
	plain := strings.NewReplacer("-", "+", "_", "/", "\r", "", "\n", "").Replace(strings.TrimSpace(string(text)))
	data, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(plain, "="))
	if err != nil {
		return nil, errors.New("it is not base64: " + strings.TrimPrefix(err.Error(), "illegal base64 data "))
	}
	return data, nil
}

// textOf returns the text of a JSON string. encoding/json would replace what is not Unicode, and
// two messages could become one.
func textOf(raw []byte) ([]byte, error) {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner[:len(inner):len(inner)], nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, err
	}
	const replacement = "\ufffd"
	written := bytes.Count(inner, []byte(replacement)) + strings.Count(strings.ToLower(string(inner)), `\ufffd`)
	if !utf8.Valid(inner) || strings.Count(text, replacement) > written {
		return nil, errors.New("the text is not Unicode: it has half of a surrogate pair or is not in UTF-8")
	}
	return []byte(text), nil
}

// setHeader replaces a header, or adds it. It changes no memory of the old headers.
func setHeader(m *semel.Message, name string, value []byte) {
	if m.CaselessHeaders {
		name = strings.ToLower(name)
	}
	headers := make([]semel.Header, 0, len(m.Headers)+1)
	for _, h := range m.Headers {
		if h.Name != name {
			headers = append(headers, h)
		}
	}
	m.Headers = append(headers, semel.Header{Name: name, Value: value})
}
