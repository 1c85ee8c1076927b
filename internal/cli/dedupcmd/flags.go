package dedupcmd

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// likeRule reports whether a key looks like one of the rules that dedup supports.
// If not, it lists them. Package key would also list rules that dedup does not
// support.
func likeRule(text string, p *term.Problems) bool {
	var wrong *key.RuleError
	_, err := key.ParseRule(text)
	switch {
	case text == "": // already reported
		return false
	case !errors.As(err, &wrong), text[0] == '.', strings.Contains(text, "("):
		return true
	}
	if path, ok := strings.CutPrefix(text, "$"); ok && strings.HasPrefix(path, ".") {
		p.Addf("--key %q: write %s", text, path)
	} else if near, ok := diagnose.Nearest(text, []string{"line", "hash(.)"}); ok {
		p.Addf("--key %q: did you mean %s?", text, near)
	} else if _, err := key.ParsePath("." + text); err == nil {
		p.Addf("--key %q: did you mean .%s?", text, text)
	} else {
		p.Addf("--key %q: there is no such rule: use a path that starts with '.', line, hash(.) or hash(.a,.b)", text)
	}
	return false
}

// Limits of the filters of package filter.
const (
	leastRate, mostRate = 1e-9, 0.5
	mostExpected        = 1 << 36
)

// parseExpect reads the number of keys for a filter.
func parseExpect(text string) (int64, error) {
	n, err := schema.ParseCount(text)
	if err == nil && (n == 0 || n > mostExpected) {
		err = errors.New("a filter can be made for 1 to 6.8e10 keys")
	}
	return n, err
}

// parseDelimiter reads the separator of CSV fields.
func parseDelimiter(text string) (byte, error) {
	switch {
	case text == "tab" || text == `\t`:
		return '\t', nil
	case len(text) != 1:
		return 0, errors.New("not a delimiter: write one ASCII character, such as ';', or tab")
	}
	return text[0], nil
}

// parseTimeUnit reads the unit of a time.
func parseTimeUnit(text string) (stream.TimeUnit, error) {
	unit, err := stream.ParseTimeUnit(text)
	if err != nil || unit == stream.AnyUnit {
		return stream.AnyUnit, errors.New("no unit of a time: write s, ms, us, ns or rfc3339")
	}
	return unit, nil
}

// timesOf returns a function that reads times, and names the flag in its errors.
func timesOf(unit stream.TimeUnit) func(text []byte) (time.Time, error) {
	words := strings.NewReplacer("time_unit: ", "--time-unit ", "time_unit", "--time-unit")
	return func(text []byte) (time.Time, error) {
		t, err := unit.Parse(text)
		if err != nil {
			err = errors.New(words.Replace(err.Error()))
		}
		return t, err
	}
}

// parseLossyRate reads a rate: 0.001, 1e-3 or 0.1%.
func parseLossyRate(text string) (lossyRate, error) {
	number, percent := strings.CutSuffix(text, "%")
	rate, err := strconv.ParseFloat(number, 64)
	if percent {
		rate /= 100
	}
	if err != nil || !(rate >= leastRate && rate <= mostRate) {
		return 0, errors.New("not a rate: write a number from 1e-9 to 0.5, as 0.001 or 0.1%")
	}
	return lossyRate(rate), nil
}
