package dedup

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestWindowForgetsKeys(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"", "store"} {
		b := setup(t)
		stdin, feed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		drain, stdout, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer drain.Close()
		opts := Options{Format: Text, Stdin: stdin, Stdout: stdout, Window: time.Millisecond}
		if store != "" {
			opts.Store = b.path(store)
		}
		ended := make(chan error, 1)
		go func() {
			_, _, err := b.run(t.Context(), opts)
			ended <- err
		}()
		// All lines are the same. A line comes out again after its key was
		// forgotten.
		buf := make([]byte, 2)
		for range 3 {
			for come := false; !come; {
				if _, err := io.WriteString(feed, "a\n"); err != nil {
					t.Fatal(err)
				}
				come = readable(drain)
			}
			if _, err := io.ReadFull(drain, buf); err != nil {
				t.Fatal(err)
			}
		}
		feed.Close()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

func TestLossyFilterSaysSoAndDropsFewNewLines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var text strings.Builder
	const ids = 20000
	for i := range ids {
		fmt.Fprintf(&text, "%d\n%d\n", i, i)
	}
	_, report := b.must(Options{Format: Text, Inputs: []string{b.file("in", text.String())}, Lossy: 0.01, Expect: ids})
	if report.Read != 2*ids || report.Fresh < ids*97/100 || report.Fresh >= ids {
		t.Errorf("%+v: not about 1 %% of %d are lost", report, ids)
	}
	if len(b.notes) == 0 || !strings.Contains(b.notes[0], "lossy") {
		t.Errorf("notes %q do not say lossy", b.notes)
	}
}
