package term

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestOnlyJoinedErrorsAreLinesOfTheirOwn(t *testing.T) {
	t.Parallel()
	a, b := errors.New("a\nforged"), errors.New("b")
	joined := errors.Join(a, fmt.Errorf("in c: %w", errors.Join(b, a)))
	for _, c := range []struct {
		err  error
		want []string
	}{
		{a, []string{"a\nforged"}},
		{joined, []string{"a\nforged", "in c: b", "a\nforged"}},
		{fmt.Errorf("x\ny: %w: z", joined), []string{"x\ny: a\nforged", "in c: b", "a\nforged: z"}},
		{fmt.Errorf("%w: %w", b, joined), []string{"b: a\nforged", "in c: b", "a\nforged"}},
		{InOneLine(joined), []string{"a; forged; in c: b"}},
	} {
		if got := errorLines(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.err, got, c.want)
		}
	}
}
