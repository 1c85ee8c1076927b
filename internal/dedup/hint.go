package dedup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// hint says why the first record of an input may have no key: the rule has a
// typing error, or the input does not have one document on each line. It
// returns "" if it finds no such cause. sure is set if the cause leaves no
// doubt that the line itself is right.
func (x *extraction) hint(line []byte, err error) (text string, sure bool) {
	var missing *key.MissingError
	absent := errors.As(err, &missing) && missing.Reason == key.Absent
	if x.comma != 0 {
		if !absent || !x.noHeader {
			return "", false
		}
		fields, _ := appendFields(nil, nil, line, x.comma)
		if len(fields) == 1 {
			text = otherComma(line, x.comma)
			return "the record has one column, .1" + text, text != ""
		}
		return fmt.Sprintf("the record has the columns .1 to .%d", len(fields)), false
	}
	var syntax *key.SyntaxError
	body := bytes.TrimSpace(line)
	switch {
	case len(body) == 0 || !absent && !errors.As(err, &syntax):
		return "", false
	case body[0] == '[':
		return "the input looks like one JSON array: pass it through jq -c '.[]', which writes each element on a line of its own", true
	case syntax != nil && body[0] == '{' && syntax.Offset >= len(bytes.TrimRight(line, " \t\r")):
		return "the input looks like JSON that spans lines: pass it through jq -c ., which writes each document on a line of its own", true
	case absent:
		return memberHint(line, missing.Rule)
	}
	return "", false
}

// memberHint lists the members of the object in which the last part of a path
// is missing, and suggests the closest one.
func memberHint(line []byte, rule string) (text string, sure bool) {
	path, err := key.ParsePath(rule)
	if err != nil {
		return "", false // the rule is not one path
	}
	for {
		parent, name := path.Split()
		if name == "" {
			return "", false
		}
		finder, err := key.NewFinder([]key.Path{parent}, nil)
		if err != nil || finder.Find(line) != nil {
			return "", false
		}
		raw, kind := finder.Raw(0)
		switch kind {
		case key.Object:
			where := "it"
			if parent.String() != "." {
				where = parent.String()
			}
			return fieldHint(where, memberNames(raw), name, func(near string) string { return pathIn(parent, near) })
		case key.Missing:
			path = parent
		default:
			return fmt.Sprintf("%s is not an object", parent), false
		}
	}
}

// memberNames returns the names of the members of a valid object, in order.
func memberNames(object []byte) (names []string) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	_, err := decoder.Token() // the '{'
	for err == nil && decoder.More() {
		var name json.Token
		if name, err = decoder.Token(); err == nil {
			names = append(names, fmt.Sprint(name))
			var value json.RawMessage
			err = decoder.Decode(&value)
		}
	}
	return names
}

// mostFields is how many fields a message lists.
const mostFields = 10

// fieldHint lists the fields that are there and suggests the closest one.
func fieldHint(where string, fields []string, missing string, path func(string) string) (text string, sure bool) {
	if len(fields) == 0 {
		return where + " has no fields", false
	}
	shown := make([]string, 0, mostFields+1)
	for i, field := range fields {
		if i == mostFields {
			shown = append(shown, fmt.Sprintf("and %d more", len(fields)-mostFields))
			break
		}
		shown = append(shown, field)
	}
	text = where + " has " + strings.Join(shown, ", ")
	if near, ok := schema.Nearest(missing, fields); ok {
		return text + ": did you mean " + path(near) + "?", true
	}
	return text, false
}

// pathIn returns the path of a member of the object at parent.
func pathIn(parent key.Path, name string) string {
	own := pathOf(name)
	if parent.String() == "." {
		return own
	}
	if strings.HasPrefix(own, ".[") {
		own = own[1:]
	}
	return parent.String() + own
}

// pathOf returns the path of a member of the document.
func pathOf(name string) string {
	if path, err := key.ParsePath("." + name); err == nil {
		if own, ok := path.Name(); ok && own == name {
			return path.String()
		}
	}
	text, err := json.Marshal(name)
	if err != nil {
		panic(err) // strings always encode
	}
	return ".[" + string(text) + "]"
}

// otherComma suggests a delimiter if a record of one field seems to have another
// one than comma.
func otherComma(record []byte, comma byte) string {
	for _, other := range ";\t|," {
		if byte(other) != comma && bytes.IndexByte(record, byte(other)) >= 0 {
			return fmt.Sprintf(": if %q separates the fields, add --delimiter %s", other, delimiterWord(byte(other)))
		}
	}
	return ""
}

// delimiterWord returns a delimiter as people write it on a command line.
func delimiterWord(comma byte) string {
	if comma == '\t' {
		return "tab"
	}
	return shellWord(string(rune(comma)))
}
