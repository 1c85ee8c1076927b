package httpidem

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel/internal/structured"
)

// errNoKey says that a request has no key.
var errNoKey = errors.New("the request has no key")

// keyOf returns the key of a request: the value of one of the profile's headers, or of a
// member of the body. It returns errNoKey if they are missing. Two values are an error
// unless they are the same key, because it is not known which one the client means.
func (p *Profile) keyOf(h http.Header, body []byte) (key string, err error) {
	found := false
	for _, name := range p.Headers {
		lines := h[name]
		if len(lines) == 0 {
			continue
		}
		if len(lines) > 1 {
			return "", fmt.Errorf("the header %s comes %d times: send it once", name, len(lines))
		}
		next, err := p.parse(lines[0])
		if err != nil {
			return "", fmt.Errorf("the header %s: %w", name, err)
		}
		if found && next != key {
			return "", fmt.Errorf("the header %s has another key than the one before it: send one of them", name)
		}
		key, found = next, true
	}
	if p.KeyPointer != "" {
		next, err := p.keyIn(body, h.Get("Content-Type"))
		switch {
		case errors.Is(err, errNoKey):
		case err != nil:
			return "", fmt.Errorf("the member %s of the body: %w", p.KeyPointer, err)
		case found && next != key:
			return "", fmt.Errorf("the member %s of the body has another key than the header: send one of them", p.KeyPointer)
		default:
			key, found = next, true
		}
	}
	if !found {
		if p.FirstSent != "" && h[p.FirstSent] != nil {
			return "", fmt.Errorf("the header %s comes without a key: send both or none", p.FirstSent)
		}
		return "", errNoKey
	}
	return key, nil
}

// keyIn returns the key in a JSON body, as it is: quotes are a part of it.
func (p *Profile) keyIn(body []byte, contentType string) (string, error) {
	path, err := pointer(p.KeyPointer)
	if err != nil {
		return "", err // New has checked it
	}
	value, err := valueAt(body, path)
	switch {
	case errors.Is(err, errNotJSON) && !isJSON(contentType), err == nil && value == nil:
		return "", errNoKey
	case err != nil:
		return "", err
	case value[0] != '"':
		return "", errors.New("expected a string")
	}
	key := unquote(value)
	if strings.ContainsRune(key, utf8.RuneError) {
		return "", errors.New("it is no valid text")
	}
	return key, p.valid(key)
}

// firstSent returns the time at which the client sent the request first. It is zero if
// the profile has no header for it.
func (p *Profile) firstSent(h http.Header) (time.Time, error) {
	if p.FirstSent == "" {
		return time.Time{}, nil
	}
	lines := h[p.FirstSent]
	if len(lines) != 1 {
		return time.Time{}, fmt.Errorf("the header %s comes %d times: a request with a key needs it once", p.FirstSent, len(lines))
	}
	sent, err := time.Parse(http.TimeFormat, lines[0])
	if err != nil {
		return time.Time{}, fmt.Errorf("the header %s: %.40q is no date such as %s", p.FirstSent, lines[0], http.TimeFormat)
	}
	if time.Until(sent) > maxAhead {
		return time.Time{}, fmt.Errorf("the header %s: %s is in the future: check the clock", p.FirstSent, lines[0])
	}
	return sent, nil
}

// maxAhead is how far the clock of a client may be ahead.
const maxAhead = 5 * time.Minute

// parse returns the key in a header value. The value is a string of RFC 9651 in quotes,
// perhaps with parameters, which do not count. Unless strict, a value without quotes is
// the key itself, as most APIs want it, so "a" and a are the same key.
func (p *Profile) parse(value string) (string, error) {
	value = strings.Trim(value, " \t")
	key := value
	switch {
	case structured.IsString(value):
		var err error
		if key, err = structured.String(value); err != nil {
			return "", err
		}
	case p.Strict:
		return "", fmt.Errorf("the value %.40q is not a string: put the key in double quotes", value)
	case strings.Contains(value, ","): // two header lines that a proxy has joined
		return "", errors.New("it may have more than one key: send one, or put a key with a comma in double quotes")
	}
	if p.Strict {
		if i := strings.IndexFunc(key, func(c rune) bool { return c > '~' }); i >= 0 {
			return "", fmt.Errorf("the key has the byte 0x%02x, which is not ASCII", key[i])
		}
	}
	return key, p.valid(key)
}

// valid checks a key.
func (p *Profile) valid(key string) error {
	if strings.Trim(key, " ") == "" {
		return errors.New("the key is blank")
	}
	if len(key) < p.MinKey || len(key) > p.MaxKey {
		return fmt.Errorf("the key has %d bytes: want %d to %d", len(key), p.MinKey, p.MaxKey)
	}
	for i := range len(key) {
		if c := key[i]; c < ' ' || c == 0x7f {
			return fmt.Errorf("the key has the byte 0x%02x, which is no printable character", c)
		}
	}
	return nil
}
