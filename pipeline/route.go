package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
)

// ErrRoute means that a message names no target, or one that its [Route] does not allow.
// The message fails; others are not affected.
var ErrRoute = errors.New("no target for the message")

// Route chooses the target of each message, such as a topic, by a value of the message.
// It allows certain targets, so that a message cannot write anywhere. It is immutable and
// safe for concurrent use. NewRoute returns one.
type Route struct {
	from, header string // header is "" if the source names the target
	names        []string
	prefixes     []string // of the targets that end in *
}

// NewRoute returns a route. from says where a message has the name of its target. With
// "source" it is semel.Origin.Source, such as the topic of an outbox row or the topic that
// was read. With "header:NAME" it is the value of a header. allow lists the allowed
// targets; one that ends in * allows every longer name with that prefix. If an argument is
// invalid, the error wraps semel.ErrInvalidRequest.
func NewRoute(from string, allow ...string) (*Route, error) {
	r := &Route{from: from}
	name, isHeader := strings.CutPrefix(from, "header:")
	if isHeader && name != "" {
		r.header = name
	} else if from != "source" {
		return nil, fmt.Errorf("pipeline: NewRoute: %q: write source or header:NAME: %w", from, semel.ErrInvalidRequest)
	}
	if len(allow) == 0 {
		return nil, fmt.Errorf("pipeline: NewRoute: no target is allowed: %w", semel.ErrInvalidRequest)
	}
	for _, target := range allow {
		prefix, isPrefix := strings.CutSuffix(target, "*")
		switch {
		case target == "" || strings.Contains(prefix, "*"):
			return nil, fmt.Errorf("pipeline: NewRoute: target %q: want a name, with * at its end at most: %w", target, semel.ErrInvalidRequest)
		case isPrefix:
			r.prefixes = append(r.prefixes, prefix)
		default:
			r.names = append(r.names, target)
		}
	}
	return r, nil
}

// Target returns the target of a message. If it has none, or one that is not allowed, the
// error wraps [ErrRoute].
func (r *Route) Target(m *semel.Message) (string, error) {
	target := m.Origin.Source
	if r.header != "" {
		value, _ := m.Header(r.header)
		target = string(value)
	}
	switch {
	case r.Allows(target):
		return target, nil
	case target == "":
		return "", fmt.Errorf("%s of the message is empty: %w", r.from, ErrRoute)
	}
	return "", fmt.Errorf("%s of the message is %.100q, which is not allowed (%s): %w", r.from, target, strings.Join(r.allowed(), ", "), ErrRoute)
}

// Allows reports whether a target is allowed.
func (r *Route) Allows(target string) bool {
	return target != "" && (slices.Contains(r.names, target) || slices.ContainsFunc(r.prefixes, func(prefix string) bool {
		return len(target) > len(prefix) && strings.HasPrefix(target, prefix)
	}))
}

// From returns where a message has the name of its target: see NewRoute.
func (r *Route) From() string { return r.from }

// Names returns the targets that are allowed by their whole names. The slice must not be
// changed.
func (r *Route) Names() []string { return r.names }

// Prefixes returns the prefixes of names that are allowed. The slice must not be
// changed.
func (r *Route) Prefixes() []string { return r.prefixes }

// String describes the route for people.
func (r *Route) String() string { return strings.Join(r.allowed(), ", ") + " by " + r.from }

func (r *Route) allowed() []string {
	list := slices.Clone(r.names)
	for _, prefix := range r.prefixes {
		list = append(list, prefix+"*")
	}
	return list
}
