package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
)

func TestUnfinishedRunRefusesAnInputWhoseLastLineWasContinued(t *testing.T) {
	t.Parallel()
	for _, pack := range []bool{false, true} {
		b := setup(t)
		text := "{\"id\":1}\n{\"id\":2}"
		in := []string{b.file("in0", text), b.file("in1", strings.Repeat("{\"id\":3}\n", 200))}
		if pack {
			b.file("in0", gzipped(text))
		}
		opts := b.checkpointedOptions("d", in)
		// The first commit is the announcement. The second follows the first
		// input.
		opts.commitBytes = int64(len(text))
		opts.failAt = stopAtSeal(3)
		if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
			t.Fatalf("error %v", err)
		}
		b.equal("output", b.content("d/out")[:len(text)+1], text+"\n")
		opts.failAt = nil
		more := " \n{\"id\":4}\n"
		if pack {
			more = gzipped(more)
		}
		whole := b.content("in0")
		b.file("in0", whole+more)
		var refused *RefusedError
		if _, _, err := b.run(t.Context(), opts); !errors.As(err, &refused) || !strings.Contains(err.Error(), "in0 grew") {
			t.Fatalf("error %v", err)
		}
		b.file("in0", whole) // rewritten with the same content
		_, report := b.must(opts)
		b.equal("output", b.content("d/out"), text+"\n{\"id\":3}\n")
		if !report.Resumed || report.Fresh != 3 {
			t.Errorf("%+v", report)
		}
	}
}

func TestAppendToAFileWithoutALastLineEndSurvivesACrashBeforeTheFirstCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := b.checkpointedOptions("d", []string{b.file("in", "{\"id\":1}\n")})
	b.file("d/out", "foreign")
	opts.Append = true
	for _, step := range []int64{1, 2, 3} {
		opts.failAt = stopAtSeal(step)
		if _, _, err := b.run(t.Context(), opts); step < 3 && !errors.Is(err, errInjected) {
			t.Fatalf("stop at commit %d: error %v", step, err)
		}
	}
	b.equal("output", b.content("d/out"), "foreign\n{\"id\":1}\n")
}

// gzipped packs text into one member.
func gzipped(text string) string {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	io.WriteString(z, text)
	z.Close()
	return packed.String()
}

func TestUnfinishedRunKnowsAllOfTheInputsThatItRead(t *testing.T) {
	t.Parallel()
	for _, failed := range []bool{false, true} {
		b := setup(t)
		odd := func(i int) string { return fmt.Sprintf("{\"id\":%d,\"text\":%q}\n", i, strings.Repeat("x", 990)) }
		var text string
		for i := range 300 {
			text += odd(i)
		}
		last := strings.Repeat("{\"id\":\"last\"}\n", 100)
		if failed {
			last += "{}\n"
		}
		opts := b.checkpointedOptions("d", []string{b.file("in0", text), b.file("in1", last)})
		opts.blockSize, opts.commitBytes = 1024, 100_000
		if failed {
			opts.OnMissing = MissingFail
		} else {
			opts.commitBytes, opts.failAt = int64(len(text))+100, stopAtSeal(3)
		}
		if _, _, err := b.run(t.Context(), opts); err == nil {
			t.Fatal("the run ended")
		}
		opts.failAt = nil
		if failed {
			b.file("in1", strings.TrimSuffix(last, "{}\n")+"{\"no\":1}\n")
			if _, _, err := b.run(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "in1:101: ") {
				t.Fatalf("error %v", err)
			}
			last = strings.TrimSuffix(last, "{}\n")
			b.file("in1", last)
		}
		middle := len(text) / 2
		b.file("in0", text[:middle]+"y"+text[middle+1:])
		var refused *RefusedError
		if _, _, err := b.run(t.Context(), opts); !errors.As(err, &refused) || !strings.Contains(err.Error(), "in0 changed") {
			t.Fatalf("failed %v: error %v", failed, err)
		}
		b.file("in0", text) // rewritten with the same content
		_, report := b.must(opts)
		b.equal("output", b.content("d/out"), text+"{\"id\":\"last\"}\n")
		if !report.Resumed {
			t.Error("the run was not resumed")
		}
	}
}
