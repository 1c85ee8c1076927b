package expr

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// appendJSON appends a value as JSON in one line. A part of the body is appended as it
// stands there, so that its numbers keep their digits.
func appendJSON(out []byte, v ref.Val) ([]byte, error) {
	switch v := v.(type) {
	case types.String:
		return appendText(out, string(v))
	case types.Int:
		return strconv.AppendInt(out, int64(v), 10), nil
	case types.Uint:
		return strconv.AppendUint(out, uint64(v), 10), nil
	case types.Double:
		return appendDouble(out, float64(v))
	case *exact:
		return append(out, v.text...), nil
	case types.Bool:
		return strconv.AppendBool(out, bool(v)), nil
	case types.Null:
		return append(out, "null"...), nil
	case types.Bytes:
		out = append(out, '"')
		out = base64.StdEncoding.AppendEncode(out, v)
		return append(out, '"'), nil
	case types.Timestamp:
		out = append(out, '"')
		out = v.UTC().AppendFormat(out, time.RFC3339Nano)
		return append(out, '"'), nil
	case types.Duration:
		return appendText(out, strconv.FormatFloat(v.Seconds(), 'f', -1, 64)+"s")
	case *types.Optional:
		return nil, errors.New("the result has an optional value: end it with .orValue(…), or write {?\"name\": …} to leave it out")
	case *list:
		return appendLine(out, v.text), nil
	case *mapping:
		if o, ok := v.entries.(*object); ok {
			return appendLine(out, o.text), nil
		}
		return appendMap(out, v)
	case traits.Mapper:
		return appendUnordered(out, v)
	case traits.Lister:
		out = append(out, '[')
		for it, first := v.Iterator(), true; it.HasNext() == types.True; first = false {
			if !first {
				out = append(out, ',')
			}
			var err error
			if out, err = appendJSON(out, it.Next()); err != nil {
				return nil, err
			}
		}
		return append(out, ']'), nil
	}
	return nil, fmt.Errorf("the result has a value of the type %s, which JSON lacks", v.Type().TypeName())
}

// appendLine appends a part of the body without line ends.
func appendLine(out, text []byte) []byte {
	if bytes.IndexByte(text, '\n') < 0 && bytes.IndexByte(text, '\r') < 0 {
		return append(out, text...)
	}
	line := bytes.NewBuffer(out)
	_ = json.Compact(line, text) // the text is valid
	return line.Bytes()
}

func appendMap(out []byte, m *mapping) (_ []byte, err error) {
	out = append(out, '{')
	for i := range m.count() {
		if i > 0 {
			out = append(out, ',')
		}
		k, v := m.entry(i)
		if out, err = appendName(out, k); err != nil {
			return nil, err
		}
		if out, err = appendJSON(append(out, ':'), v); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

// appendUnordered appends a map whose order is that of a Go map.
func appendUnordered(out []byte, m traits.Mapper) ([]byte, error) {
	var f fields
	for it := m.Iterator(); it.HasNext() == types.True; {
		k := it.Next()
		f.keys = append(f.keys, k)
	}
	name := func(k ref.Val) string {
		text, _ := appendName(nil, k) // an error is met again below
		return string(text)
	}
	slices.SortFunc(f.keys, func(a, b ref.Val) int { return strings.Compare(name(a), name(b)) })
	for _, k := range f.keys {
		f.vals = append(f.vals, m.Get(k))
	}
	return appendMap(out, &mapping{&f})
}

// appendName appends the key of a map as the name of a member.
func appendName(out []byte, k ref.Val) ([]byte, error) {
	switch k := k.(type) {
	case types.String:
		return appendText(out, string(k))
	case types.Int, types.Uint, types.Bool:
		return appendText(out, fmt.Sprint(k.Value()))
	}
	return nil, fmt.Errorf("the result has a map with a key of the type %s: JSON has texts there", k.Type().TypeName())
}

func appendText(out []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, errors.New("the result has a text that is not valid UTF-8")
	}
	const digits = "0123456789abcdef"
	out = append(out, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		out = append(out, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
	}
	return append(append(out, s[from:]...), '"'), nil
}

// appendDouble appends a number as encoding/json does.
func appendDouble(out []byte, x float64) ([]byte, error) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil, fmt.Errorf("the result has the number %v, which JSON lacks", x)
	}
	format := byte('f')
	if size := math.Abs(x); size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(out, x, format, -1, 64), nil
}
