package httpsrc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/jsontext"
	"github.com/semel-dev/semel/key"
)

// Split says where the messages of a request are. ParseSplit returns one. It is safe for
// concurrent use.
type Split struct {
	text    string
	path    key.Path
	finders sync.Pool // of *key.Finder for path
}

const (
	splitArray = "array"
	splitLines = "lines"
	// mostMessages is how many messages a request may have. Each of them can be parked with
	// all headers of the request.
	mostMessages = 10_000
)

var errManyMessages = fmt.Errorf("the request has more than %d messages", mostMessages)

// ParseSplit reads where the messages of a request are:
//
//	array    the elements of a JSON array; a document that is no array is one message
//	lines    the lines of the body that are not blank
//	.a.b     the elements of the array at a path of a JSON document: see key.ParsePath
func ParseSplit(text string) (*Split, error) {
	s := &Split{text: text}
	var err error
	switch text {
	case splitArray, splitLines:
		s.path, err = key.ParsePath(".")
	default:
		if s.path, err = key.ParsePath(text); err == nil && text != "." {
			return s, nil
		}
		hint := " such as .events"
		if _, err := key.ParsePath("." + text); err == nil && text != "" && text != "." {
			hint = ": write ." + text
		}
		return nil, fmt.Errorf("%q is neither array nor lines nor a path%s", text, hint)
	}
	return s, err
}

// String returns the text that ParseSplit has read.
func (s *Split) String() string { return s.text }

// events are the bodies of a request's messages.
type events struct {
	rest  []byte
	place int // in rest
	step  stepper
	count int
}

// stepper returns the event at a place in the rest, and the place of the following one. It is
// not ok after the last one.
type stepper func(rest []byte, place int) (event []byte, next int, ok bool)

// next returns the body of the next message. It is not ok after the last one.
func (e *events) next() (event []byte, ok bool) {
	event, e.place, ok = e.step(e.rest, e.place)
	return event, ok
}

// of returns the messages of a body. A body that it cannot divide is an error, and none of its
// messages is used. A nil Split takes it for one message.
func (s *Split) of(body []byte) (events, error) {
	switch {
	case s == nil:
		return whole(body), nil
	case s.text == splitLines:
		return counted(events{rest: bytes.TrimPrefix(body, []byte("\ufeff")), step: line})
	}
	finder, ok := s.finders.Get().(*key.Finder)
	if !ok {
		var err error
		if finder, err = key.NewFinder([]key.Path{s.path}, nil); err != nil {
			return events{}, err
		}
	}
	defer s.finders.Put(finder)
	if err := finder.Find(body); err != nil {
		if syntax, ok := errors.AsType[*key.SyntaxError](err); ok {
			err = fmt.Errorf("the body is not JSON: %s at byte %d", syntax.Problem, syntax.Offset)
		}
		return events{}, err
	}
	list, kind := finder.Raw(0)
	switch {
	case kind == key.Array:
		if name := s.repeated(body); name != "" {
			return events{}, fmt.Errorf("the body has %.50q twice on the way to the messages: those of one would be lost", name)
		}
		return counted(events{rest: list, step: element})
	case s.text == splitArray:
		return whole(body), nil
	case kind != key.Missing:
		return events{}, fmt.Errorf("%s is no array, but %s", s.path, kind)
	}
	has, near := diagnose.Member(body, s.text)
	if near != "" {
		has += ": did you mean " + near + "?"
	}
	return events{}, fmt.Errorf("%s is missing: %s", s.path, has)
}

// repeated returns the name of a member on the path that a valid body has twice, or "".
func (s *Split) repeated(body []byte) string {
	var names []string
	for path := s.path; path.String() != "."; {
		parent, name := path.Split()
		names, path = append(names, name), parent
	}
	at := jsontext.Trim(body)
	for _, name := range slices.Backward(names) {
		if name == "" || at[0] != '{' { // an element of an array
			return ""
		}
		var found []byte
		for member, value, next := jsontext.Next(at, 0); value != nil; member, value, next = jsontext.Next(at, next) {
			switch {
			case !isName(member, name):
			case found != nil:
				return name
			default:
				found = value
			}
		}
		at = found
	}
	return ""
}

// isName reports whether a JSON string is a name.
func isName(member []byte, name string) bool {
	if !bytes.ContainsRune(member, '\\') {
		return string(member[1:len(member)-1]) == name
	}
	var text string
	return json.Unmarshal(member, &text) == nil && text == name
}

// whole returns a body that is one message.
func whole(body []byte) events {
	return events{rest: body, count: 1, step: func(rest []byte, place int) ([]byte, int, bool) { return rest, 1, place == 0 }}
}

// counted sets the count of messages.
func counted(e events) (events, error) {
	c := e
	for _, ok := c.next(); ok; _, ok = c.next() {
		if e.count++; e.count > mostMessages {
			return events{}, errManyMessages
		}
	}
	return e, nil
}

// element is a stepper for the elements of an array.
func element(rest []byte, place int) (event []byte, next int, ok bool) {
	_, event, next = jsontext.Next(rest, place)
	return event, next, event != nil
}

// line is a stepper for the lines that are not blank.
func line(rest []byte, place int) (event []byte, next int, ok bool) {
	for place < len(rest) {
		event, _, _ = bytes.Cut(rest[place:], []byte{'\n'})
		place = min(place+len(event)+1, len(rest))
		if len(bytes.TrimSpace(event)) > 0 {
			return bytes.TrimSuffix(event, []byte{'\r'}), place, true
		}
	}
	return nil, place, false
}
