package cli

import (
	"errors"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/key"
)

// likeRule reports whether a key looks like one of the rules that dedup knows,
// and says otherwise which ones there are: package key would name others too.
func likeRule(text string, p *problems) bool {
	var wrong *key.RuleError
	_, err := key.ParseRule(text)
	switch {
	case text == "": // was complained about
		return false
	case !errors.As(err, &wrong), text[0] == '.', strings.HasPrefix(text, "hash("):
		return true
	}
	if near, ok := nearest(text, []string{"line", "hash(.)"}); ok {
		p.addf("--key %q: did you mean %s?", text, near)
	} else if _, err := key.ParsePath("." + text); err == nil {
		p.addf("--key %q: did you mean .%s?", text, text)
	} else {
		p.addf("--key %q: there is no such rule: use a path that begins with '.', line, hash(.) or hash(.a,.b)", text)
	}
	return false
}

// parseLossyRate reads a rate between 0 and 1: 0.001, 1e-3 or 0.1%.
func parseLossyRate(text string) (lossyRate, error) {
	number, percent := strings.CutSuffix(text, "%")
	rate, err := strconv.ParseFloat(number, 64)
	if percent {
		rate /= 100
	}
	if err != nil || !(rate > 0 && rate < 1) {
		return 0, errors.New("not a rate: write a number above 0 and below 1, as 0.001 or 0.1%")
	}
	return lossyRate(rate), nil
}
