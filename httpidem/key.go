package httpidem

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// maxKey is the longest key in bytes, as at Stripe.
const maxKey = 255

// errNoKey says that a request has no key.
var errNoKey = errors.New("the request has no key")

// keyOf returns the key of a request: the value of one of these headers. It returns
// errNoKey if they are missing. Two values are an error unless they are the same key under
// two names, because it is not known which one the client means.
func keyOf(h http.Header, names []string, strict bool) (key string, err error) {
	found := false
	for _, name := range names {
		lines := h.Values(name)
		if len(lines) == 0 {
			continue
		}
		if len(lines) > 1 {
			return "", fmt.Errorf("the header %s comes %d times: send it once", name, len(lines))
		}
		next, err := parseKey(lines[0], strict)
		if err != nil {
			return "", fmt.Errorf("the header %s: %w", name, err)
		}
		if found && next != key {
			return "", fmt.Errorf("the header %s has another key than the one before it: send one of them", name)
		}
		key, found = next, true
	}
	if !found {
		return "", errNoKey
	}
	return key, nil
}

// parseKey returns the key in a header value. The value is a string of RFC 9651 in
// quotes, perhaps with parameters, which do not count. Unless strict, a value without
// quotes is the key itself, as most APIs want it, so "a" and a are the same key.
func parseKey(value string, strict bool) (string, error) {
	value = strings.Trim(value, " \t")
	key := value
	switch {
	case strings.HasPrefix(value, `"`):
		var rest string
		var err error
		if key, rest, err = quoted(value); err != nil {
			return "", err
		}
		if err := parameters(rest); err != nil {
			return "", err
		}
	case strict:
		return "", fmt.Errorf("the value %.40q is not a string: put the key in double quotes", value)
	case strings.Contains(value, ","): // two header lines that a proxy has joined
		return "", errors.New("it may have more than one key: send one, or put a key with a comma in double quotes")
	}
	if strings.Trim(key, " ") == "" {
		return "", errors.New("the key is blank")
	}
	if len(key) > maxKey {
		return "", fmt.Errorf("the key has %d bytes: want 1 to %d", len(key), maxKey)
	}
	for i := range len(key) {
		if c := key[i]; c < ' ' || c == 0x7f || strict && c > 0x7f {
			return "", fmt.Errorf("the key has the byte 0x%02x, which is no printable character", c)
		}
	}
	return key, nil
}

// quoted returns the text of a string in quotes, and what follows it.
func quoted(value string) (text, rest string, err error) {
	var b strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"':
			return b.String(), value[i+1:], nil
		case c == '\\':
			i++
			if i == len(value) || value[i] != '"' && value[i] != '\\' {
				return "", "", errors.New(`a backslash is followed by neither " nor \`)
			}
			b.WriteByte(value[i])
		case c < ' ' || c == 0x7f:
			return "", "", fmt.Errorf("the key has the byte 0x%02x, which is no printable character", c)
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errors.New("the closing double quote is missing")
}

// parameters checks what follows a string: nothing, or parameters, see section 3.1.2 of
// RFC 9651. Their values are not checked further, except that a comma would begin
// another key.
func parameters(rest string) error {
	rest = strings.TrimLeft(rest, " ")
	if rest == "" {
		return nil
	}
	if rest[0] != ';' || len(strings.Trim(rest, "; ")) == 0 {
		return fmt.Errorf("%.40q follows the closing double quote", rest)
	}
	inside := false
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '\\' && inside:
			i++
		case c == '"':
			inside = !inside
		case c == ',' && !inside:
			return errors.New("it has more than one key: send one")
		}
	}
	if inside {
		return errors.New("the closing double quote of a parameter is missing")
	}
	return nil
}
