package postgres

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// from is the source of a value.
type from struct {
	text   string
	path   int    // index of a place in the body, or -1
	header string // name of a header, or ""
}

// words are the values that have a name. The bytes of body and record-key are a
// document for a JSON column, a json.Number is a number, and a string is a text.
var words = map[string]func(it *pipeline.Item) any{
	"body":                func(it *pipeline.Item) any { return bytesOrNull(it.Message.Body) },
	"record-key":          func(it *pipeline.Item) any { return bytesOrNull(it.Message.RecordKey) },
	"property:message-id": func(it *pipeline.Item) any { return textOrNull(it.Message.ID) },
	"key":                 func(it *pipeline.Item) any { return asText(key.AppendText(nil, []byte(it.Call.Key.ID))) },
	"scope":               func(it *pipeline.Item) any { return it.Call.Key.Scope },
	"attempt":             func(it *pipeline.Item) any { return json.Number(strconv.Itoa(max(it.Attempt, 1))) },
	"token":               func(it *pipeline.Item) any { return json.Number(fmt.Sprint(uint64(it.Token))) },
	"source":              func(it *pipeline.Item) any { return it.Message.Origin.Source },
	"partition":           func(it *pipeline.Item) any { return json.Number(strconv.Itoa(int(it.Message.Origin.Partition))) },
	"offset":              func(it *pipeline.Item) any { return json.Number(strconv.FormatInt(it.Message.Origin.Offset, 10)) },
	"time": func(it *pipeline.Item) any {
		if it.Message.Time.IsZero() {
			return nil
		}
		return it.Message.Time.UTC().Format(time.RFC3339Nano)
	},
}

func bytesOrNull(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// values reads the values of messages. It is safe for concurrent use.
type values struct {
	list    []from
	paths   []key.Path
	finders sync.Pool
}

// newValues parses the sources of values.
func newValues(texts []string) (*values, error) {
	v := &values{}
	for _, text := range texts {
		f := from{text: text, path: -1}
		switch name, isHeader := strings.CutPrefix(text, "header:"); {
		case strings.HasPrefix(text, "."):
			path, err := key.ParsePath(text)
			if err != nil {
				return nil, err
			}
			f.path = len(v.paths)
			v.paths = append(v.paths, path)
		case isHeader && name != "":
			f.header = name
		case words[text] == nil:
			return nil, fmt.Errorf("%q is no value of a message: write .path, header:NAME or one of body, record-key, property:message-id, key, scope, time, attempt, token, source, partition, offset", text)
		}
		v.list = append(v.list, f)
	}
	if len(v.paths) > 0 {
		finder, err := key.NewFinder(v.paths, nil)
		if err != nil {
			return nil, err
		}
		v.finders.Put(finder)
		v.finders.New = func() any {
			finder, err := key.NewFinder(v.paths, nil)
			if err != nil {
				panic(err) // newValues checked the same paths
			}
			return finder
		}
	}
	return v, nil
}

// of appends the values of a message to args. Values are sent as text, which the server
// converts to the type of the column or parameter. Only texts and arrays for a JSON or
// array column are written in another way; the first value is that of parameter first.
func (v *values) of(args []any, it *pipeline.Item, types *targets, first int) ([]any, error) {
	var finder *key.Finder
	if len(v.paths) > 0 {
		finder = v.finders.Get().(*key.Finder)
		defer v.finders.Put(finder)
		if err := finder.Find(it.Message.Body); err != nil {
			return nil, fmt.Errorf("the body: %w", err)
		}
	}
	at := len(args)
	args = append(args, make([]any, len(v.list))...)
	own := args[at:]
	for i, f := range v.list {
		to := types.of(first + i)
		switch {
		case f.path >= 0:
			raw, kind := finder.Raw(f.path)
			value, err := to.convert(raw, kind)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.text, err)
			}
			own[i] = value
			continue
		case f.header != "":
			if value, ok := it.Message.Header(f.header); ok && value != nil {
				own[i] = asText(value)
			}
		default:
			own[i] = words[f.text](it)
		}
		switch value := own[i].(type) {
		case json.Number:
			own[i] = string(value)
		case string:
			if to.json && !to.array {
				quoted, err := json.Marshal(value)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", f.text, err)
				}
				own[i] = string(quoted)
			}
		}
	}
	return args, nil
}

// asText returns text as text, for columns of any type, and other bytes as
// bytes.
func asText(b []byte) any {
	if utf8.Valid(b) {
		return string(b)
	}
	return b
}

var errNoText = errors.New("the string has bytes that are no UTF-8, or half of a surrogate pair, which no text of a database can be")

// isText reports whether a JSON string, with its escapes, is valid text.
// encoding/json replaces invalid text with U+FFFD, which would be another value.
func isText(raw []byte) bool {
	for rest := raw; ; {
		i := bytes.IndexByte(rest, '\\')
		if i < 0 {
			return utf8.Valid(raw)
		}
		rest = rest[i:]
		r, size := escaped(rest)
		if utf16.IsSurrogate(r) {
			low, more := escaped(rest[size:])
			if utf16.DecodeRune(r, low) == utf8.RuneError {
				return false
			}
			size += more
		}
		rest = rest[size:]
	}
}

// escaped returns the code of the \u escape at the start of a valid string's
// text, and its length. The code is 0 if there is another escape or none.
func escaped(text []byte) (r rune, size int) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, min(2, len(text))
	}
	code, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	if err != nil {
		return 0, 2 // json.Unmarshal reports it
	}
	return rune(code), 6
}
