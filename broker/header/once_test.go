package header

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestOnceIDIsEqualOnlyForAttemptsOfOneKey has outputs that a broker must not take for each
// other.
func TestOnceIDIsEqualOnlyForAttemptsOfOneKey(t *testing.T) {
	t.Parallel()
	output := func(name, scope, id, target string, redrive int) string {
		it := &pipeline.Item{Call: semel.Call{Key: semel.Key{Scope: scope, ID: id}}, Redrive: redrive, Attempt: 3, Token: 9}
		return OnceID(it, name, target, 128)
	}
	first := output("p", "s", "1", "out.a", 0)
	again := OnceID(&pipeline.Item{Call: semel.Call{Key: semel.Key{Scope: "s", ID: "1"}}, Message: semel.Message{Body: []byte("b")}}, "p", "out.a", 128)
	if again != first || !strings.HasPrefix(first, "s:1#") {
		t.Errorf("two attempts have the ids %q and %q", first, again)
	}
	of := map[string]int{first: -1}
	for i, id := range []string{
		output("q", "s", "1", "out.a", 0),
		output("p", "t", "1", "out.a", 0),
		output("p", "s", "2", "out.a", 0),
		output("p", "s", "1", "out.b", 0),
		output("p", "s", "1", "out.a", 1),
		output("p", "s", "1#r1", "out.a", 0),
		output("p", "s:1", "1", "out.a", 0),
		output("p", "s", "1:1", "out.a", 0),
		output("p", "s", "1out", ".a", 0),
		output("p", "s", "\x001", "out.a", 0),
		output("p", "s", "ü", "out.a", 0),
		output("p", "s", strings.Repeat("x", 200), "out.a", 0),
		output("p", "s", strings.Repeat("x", 201), "out.a", 0),
	} {
		if other, taken := of[id]; taken {
			t.Errorf("outputs %d and %d have the id %q", other, i, id)
		}
		if of[id] = i; len(id) > 128 || strings.ContainsFunc(id, func(c rune) bool { return c < '!' || c > '~' }) {
			t.Errorf("output %d has the id %q", i, id)
		}
	}
}
