package schema

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names, addresses and references to stores.

// Reference is the name of a store at a place where it is used.
type Reference struct {
	Name string
	At   Place
}

func (v Value) References(target *[]Reference) {
	v.List(func(element Value) {
		if r := element.reference(); r.Name != "" {
			*target = append(*target, r)
		}
	})
}

// reference reads the name of a store.
func (v Value) reference() (r Reference) {
	v.Text(&r.Name)
	r.At = v.Place()
	return r
}

func IsName(name string) bool {
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

// IdentifierField is an SQL name that needs no quotes.
func IdentifierField(name string, target *string, most int, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarText}, Read: func(v Value) { v.Identifier(target, most) }}
}

func (v Value) Identifier(target *string, most int) {
	Quantity(v, target, "a name", func(text string) (string, error) {
		switch {
		case text == "" || len(text) > most:
			return "", fmt.Errorf("write 1 to %d letters", most)
		case !IsIdentifier(text, most):
			return "", fmt.Errorf("write lower-case letters, digits and _, a letter first")
		}
		return text, nil
	})
}

func IsIdentifier(text string, most int) bool {
	for i, c := range []byte(text) {
		if c != '_' && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return text != "" && len(text) <= most
}

// AddressesField is a list of host:port. Messages suggest the usual port.
func AddressesField(name string, target *[]string, port, doc string) Field {
	return ListField(name, Form{Scalar: ScalarText}, func(v Value) {
		v.List(func(element Value) {
			var address string
			element.Text(&address)
			if address == "" {
				return
			}
			if !isHostPort(address) && !element.hasPlaceholder() {
				host := "host"
				if IsName(strings.ReplaceAll(address, ".", "-")) {
					host = address // without a port
				}
				element.Wrong("write it like %s:%s", host, port)
				return
			}
			*target = append(*target, address)
		})
	}, doc)
}

func isHostPort(address string) bool {
	i := strings.LastIndexByte(address, ':')
	if i <= 0 || strings.Contains(address, "/") || strings.Contains(address, "@") {
		return false
	}
	port, err := strconv.ParseUint(address[i+1:], 10, 16)
	return err == nil && port > 0
}

// CheckListen reports an address that is not a valid listen address.
func (v Value) CheckListen(address string) {
	if address == "" {
		return // already reported
	}
	if _, err := ParseListen(address); err != nil {
		v.Wrong("%v", err)
	}
}

// ParseListen reads an address to listen on.
func ParseListen(address string) (string, error) {
	host, port, ok := CutLast(address, ":")
	if !ok || strings.ContainsAny(host, "/@ ") || !isPort(port) {
		return "", errors.New("not an address to listen on: write it like 127.0.0.1:8080")
	}
	return address, nil
}

func CutLast(text, separator string) (before, after string, ok bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}
func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// HasScheme reports whether text is a URL with one of the schemes.
func HasScheme(text string, schemes ...string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && slices.Contains(schemes, scheme)
}
