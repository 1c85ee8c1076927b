package key

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// parser reads the text of a rule.
type parser struct {
	text string
	pos  int
}

func (p *parser) done() bool { return p.pos == len(p.text) }

// peek returns the next byte, or 0 at the end.
func (p *parser) peek() byte {
	if p.done() {
		return 0
	}
	return p.text[p.pos]
}

// here describes the text at the position, for messages.
func (p *parser) here() string {
	if p.done() {
		return "the end"
	}
	r, _ := utf8.DecodeRuneInString(p.text[p.pos:])
	return fmt.Sprintf("%q", r)
}

func (p *parser) errorf(format string, args ...any) error {
	return &RuleError{Text: p.text, Column: p.pos + 1, Problem: fmt.Sprintf(format, args...)}
}

// take skips prefix if the text continues with it.
func (p *parser) take(prefix string) bool {
	if !strings.HasPrefix(p.text[p.pos:], prefix) {
		return false
	}
	p.pos += len(prefix)
	return true
}

func (p *parser) spaces() {
	for p.take(" ") {
	}
}
