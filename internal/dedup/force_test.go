package dedup

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// told reports whether a note gives this number of lines that do not come
// again.
func (b *bundle) told(lines string) bool {
	return slices.ContainsFunc(b.notes, func(note string) bool {
		return strings.Contains(note, ": it had "+lines+" of earlier runs, which are not written again, because the store remembers the keys") && strings.Contains(note, "--scope")
	})
}

func TestAForcedRunWithoutItsOutputContinuesAndReportsTheLoss(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *bundle) error{
		"removed": func(b *bundle) error { return os.Remove(b.path("d/out")) },
		"edited":  func(b *bundle) error { return os.WriteFile(b.path("d/out"), []byte("theirs"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			text := strings.Repeat("{\"id\":1}\nodd\n", 10) + "{\"id\":2}\n" + strings.Repeat("{\"id\":3}\n", 200)
			opts := b.checkpointedOptions("d", []string{b.file("in", text)})
			opts.blockSize, opts.commitBytes = 32, 64
			opts.failAt = stopAtSeal(3)
			if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
				t.Fatalf("error %v", err)
			}
			b.equal("output", b.content("d/out")[:9], "{\"id\":1}\n")
			if err := change(b); err != nil {
				t.Fatal(err)
			}
			opts.failAt, b.notes = nil, nil
			var refused *RefusedError
			if _, _, err := b.run(t.Context(), opts); !errors.As(err, &refused) {
				t.Fatalf("error %v", err)
			}
			if _, err := os.Stat(b.path("d/out")); err != nil {
				if want := "dedup: refused: --output " + b.path("d/out") + " was removed: it had 1 line that this run does not write again. Put the file back, or start over with another --store; with --force the lines stay missing"; refused.Error() != want {
					t.Errorf("refused with %q, want %q", refused.Error(), want)
				}
				opts.Append = true
				if _, _, err := b.run(t.Context(), opts); !errors.As(err, &refused) {
					t.Errorf("--append: error %v", err)
				}
				opts.Append = false
			}
			if len(b.notes) > 0 {
				t.Errorf("a refused run tells %q", b.notes)
			}
			opts.Force = true
			_, report := b.must(opts)
			if !report.Resumed || report.Read != 221 || report.Rejected != 10 {
				t.Errorf("%+v: not from where it stopped", report)
			}
			b.equal("output", b.content("d/out"), "{\"id\":2}\n{\"id\":3}\n")
			// Nothing is twice in the other files, and no first line is a duplicate.
			b.equal("duplicates", b.content("d/dups"), strings.Repeat("{\"id\":1}\n", 9)+strings.Repeat("{\"id\":3}\n", 199))
			b.equal("rejected", b.content("d/rejected"), strings.Repeat("odd\n", 10))
			if !b.told("1 line") {
				t.Errorf("notes %q", b.notes)
			}
		})
	}
}

func TestAFinishedRunWithoutItsOutputReportsTheLoss(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		b := setup(t)
		opts := b.checkpointedOptions("d", []string{b.file("in", "{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n")})
		b.must(opts)
		if len(b.notes) > 0 {
			t.Fatalf("notes %q", b.notes)
		}
		if opts.Force = force; force {
			b.file("d/out", "theirs")
		} else if err := os.Remove(b.path("d/out")); err != nil {
			t.Fatal(err)
		}
		b.file("more", "{\"id\":3}\n")
		opts.Inputs = append(opts.Inputs, b.path("more"))
		b.must(opts)
		b.equal("output", b.content("d/out"), "{\"id\":3}\n")
		if !b.told("2 lines") {
			t.Fatalf("notes %q", b.notes)
		}
		b.notes = nil
		b.must(opts)
		if b.noted("not written again") {
			t.Errorf("notes %q", b.notes)
		}
	}
}
