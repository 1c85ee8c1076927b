package dedup

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// streamOf writes documents as a stream: some in arrays, some behind each other, some over lines.
func streamOf(r *rand.Rand, documents []string) string {
	var text strings.Builder
	for len(documents) > 0 {
		n := 1 + r.IntN(min(len(documents), 5))
		space := []string{"", " ", "\n", "\r\n\t"}[r.IntN(4)]
		if r.IntN(2) == 0 {
			fmt.Fprintf(&text, "[%s]%s", strings.Join(documents[:n], space+","+space), space)
		} else {
			text.WriteString(strings.Join(documents[:n], space) + space)
		}
		documents = documents[n:]
	}
	return text.String()
}

// TestAStreamOfDocumentsIsDedupedAsTheirLines stops a run before each of its commits, and lets the
// same command continue it.
func TestAStreamOfDocumentsIsDedupedAsTheirLines(t *testing.T) {
	t.Parallel()
	r := random(t)
	b := setup(t)
	var documents []string
	for range 200 {
		documents = append(documents, fmt.Sprintf(`{"id":%d,"s":"]} \" ,[{"}`, r.IntN(100)))
	}
	want, _ := b.must(Options{Inputs: []string{b.file("lines", linesOf(documents...))}, Keys: []string{".id"}, Format: JSONL})
	for _, pack := range []bool{false, true} {
		text := streamOf(r, documents)
		spread := strings.ReplaceAll(text, `,"s":`, ",\n \"s\" : ")
		if pack {
			spread = compressed(r, spread)
		}
		in := b.file(fmt.Sprintf("stream %v", pack), spread)
		got, report := b.must(Options{Inputs: []string{in}, Keys: []string{".id"}, Format: JSON})
		b.equal("output", got, want)
		if report.Counts.Read != 200 {
			t.Errorf("%d read", report.Counts.Read)
		}
		for stop := int64(1); stop < 6; stop++ {
			dir := fmt.Sprintf("stopped %v %d", pack, stop)
			opts := b.checkpointedOptions(dir, []string{in})
			opts.Format, opts.failAt = JSON, stopAtSeal(stop)
			if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
				t.Fatalf("the run did not stop: %v", err)
			}
			opts.failAt = nil
			if _, _, err := b.run(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			b.equal("output after a stop", b.content(dir+"/out"), want)
		}
	}
}
