package file_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/pipeline"
)

// shout is a FilterMap for the tests: it goes by the start of the body.
func shout(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
	body := string(d.Body)
	switch {
	case strings.HasPrefix(body, "drop"):
		return nil, false, nil
	case strings.HasPrefix(body, "bad"):
		return nil, false, errors.New("no such key: x")
	case body == "lines":
		return []byte("{\"a\":\n1}"), true, nil
	case body == "no line":
		return []byte("a\nb"), true, nil
	}
	return []byte(strings.ToUpper(body)), true, nil
}

func TestSessionWritesTheBodiesOfAFilterMap(t *testing.T) {
	t.Parallel()
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	s := openSession(t, store, path, nil)
	process(t, s, itemsOf("bad 1"))
	closeSession(t, s)
	s = openSession(t, store, path, &file.SessionOptions{FilterMap: shout})
	list := itemsOf("one", "drop", "bad 1", "bad 2", "one", "lines", "no line", "drop")
	process(t, s, list)
	for i, want := range []string{"fresh", "fresh filtered", "duplicate", "fresh permanent", "duplicate", "fresh", "undecided permanent", "duplicate"} {
		it := list[i]
		got := it.Decision.String()
		if it.Filtered && it.Decision == semel.Fresh {
			got += " filtered"
		}
		if semel.Classify(it.Err) == semel.ClassPermanent && it.Err != nil {
			got += " permanent"
		}
		if got != want {
			t.Errorf("message %d, %s: %s (%v), want %s", i, it.Message.Body, got, it.Err, want)
		}
	}
	again := itemsOf("drop", "bad 2")
	process(t, s, again)
	if again[0].Decision != semel.Duplicate || again[1].Err == nil {
		t.Errorf("again: %s (%v), %s (%v)", again[0].Decision, again[0].Err, again[1].Decision, again[1].Err)
	}
	closeSession(t, s)
	if got := contentOf(t, path); got != "bad 1\nONE\n{\"a\":1}\n" {
		t.Errorf("got %q", got)
	}
}
