package diagnose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/semel-dev/semel/key"
)

// Member lists the members of the object of a document in which the last part of a
// path is missing. near is the path of the closest member, or "". Both are "" if rule
// is not one path, or if there is no such object.
func Member(document []byte, rule string) (has, near string) {
	path, err := key.ParsePath(rule)
	if err != nil {
		return "", ""
	}
	for {
		parent, name := path.Split()
		if name == "" {
			return "", ""
		}
		finder, err := key.NewFinder([]key.Path{parent}, nil)
		if err != nil || finder.Find(document) != nil {
			return "", ""
		}
		raw, kind := finder.Raw(0)
		switch kind {
		case key.Object:
			where := "it"
			if parent.String() != "." {
				where = parent.String()
			}
			names := memberNames(raw)
			if member, ok := Nearest(name, names); ok {
				near = pathIn(parent, member)
			}
			return Fields(where, names), near
		case key.Missing:
			path = parent
		default:
			return fmt.Sprintf("%s is not an object", parent), ""
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

// mostFields is how many fields a message lists, and mostName how many characters each of them
// may have there.
const (
	mostFields = 10
	mostName   = 60
)

// Fields lists the fields that are there, such as "it has id, name".
func Fields(where string, fields []string) string {
	if len(fields) == 0 {
		return where + " has no fields"
	}
	shown := make([]string, 0, mostFields+1)
	for i, field := range fields {
		if i == mostFields {
			shown = append(shown, fmt.Sprintf("and %d more", len(fields)-mostFields))
			break
		}
		if short := fmt.Sprintf("%.*s", mostName, field); short != field {
			field = short + "…"
		}
		shown = append(shown, field)
	}
	return where + " has " + strings.Join(shown, ", ")
}

// pathIn returns the path of a member of the object at parent.
func pathIn(parent key.Path, name string) string {
	own := PathOf(name)
	if parent.String() == "." {
		return own
	}
	if strings.HasPrefix(own, ".[") {
		own = own[1:]
	}
	return parent.String() + own
}

// PathOf returns the path of a member of the document.
func PathOf(name string) string {
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
