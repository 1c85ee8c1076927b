// Package structured reads and writes strings as structured fields of HTTP have them
// (RFC 9651): in double quotes. An Idempotency-Key is one.
package structured

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// IsString reports whether the value of a header begins as a string does.
func IsString(value string) bool { return strings.HasPrefix(value, `"`) }

// String returns the text of a string, perhaps with parameters, which do not count.
func String(value string) (string, error) {
	text, rest, err := quoted(value)
	switch {
	case err != nil:
		return "", err
	case strings.HasPrefix(strings.TrimLeft(rest, " "), ","):
		return "", errors.New("it has more than one key: send one")
	case !parameters().MatchString(rest):
		return "", fmt.Errorf("%.40q follows the closing double quote", rest)
	}
	return text, nil
}

// Quote returns a text of printable ASCII as a string.
func Quote(text string) string { return `"` + escape.Replace(text) + `"` }

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

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

// parameters is what may follow a string: nothing, or parameters, as sections 3.1.2 and
// 4.2.3.2 of RFC 9651 have them. The values are, in this order: string, bytes, boolean,
// date, decimal, integer, token, display string.
var parameters = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:` + strings.Join([]string{
		`"(?:[ !#-\[\]-~]|\\["\\])*"`,
		`:[A-Za-z0-9+/=]*:`,
		`\?[01]`,
		`@-?[0-9]{1,15}`,
		`-?[0-9]{1,12}\.[0-9]{1,3}`,
		`-?[0-9]{1,15}`,
		"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*",
		`%"(?:[ !#$&-~]|%[0-9a-f]{2})*"`,
	}, "|") + `))?)* *$`)
})
