package suite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel/bench/internal/records"
)

func TestWrongWindowResultsAreReported(t *testing.T) {
	t.Parallel()
	result := func(group string, n int) []byte {
		return fmt.Appendf(nil, `{"key":%q,"start":"1970-01-01T00:00:00Z","end":"1970-01-01T00:01:00Z","values":{"n":%d}}`, group, n)
	}
	right := map[records.Result]records.Totals{{Group: "a", End: 60_000}: {Count: 1, Cents: 5}, {Group: "b", End: 60_000}: {Count: 2, Cents: 7}}
	count, sum := windowed{}, windowed{sum: true}
	for name, c := range map[string]struct {
		w    windowed
		got  [][]byte
		want string
	}{
		"counts":  {count, [][]byte{result("a", 1), result("b", 2)}, ""},
		"sums":    {sum, [][]byte{result("a", 5), result("b", 7)}, ""},
		"missing": {count, [][]byte{result("a", 1)}, "there are 1 results, want 2"},
		"twice":   {count, [][]byte{result("a", 1), result("b", 2), result("a", 1)}, "is there twice"},
		"foreign": {count, [][]byte{result("a", 1), result("c", 2)}, "is not a result"},
		"wrong":   {count, [][]byte{result("a", 1), result("b", 3)}, "want {Count:2"},
		"no sum":  {sum, [][]byte{result("a", 1)}, "want {Count:1"},
		"no JSON": {count, [][]byte{[]byte("a")}, "result"},
		"empty":   {count, [][]byte{[]byte("{}")}, "has no value n"},
	} {
		err := c.w.check(c.got, right)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
