package file_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// bundle is a directory and a source in it.
type bundle struct {
	*testing.T
	dir  string
	opts file.SourceOptions
	*file.Source
}

func setup(t *testing.T, opts file.SourceOptions) *bundle {
	b := &bundle{T: t, dir: t.TempDir(), opts: opts}
	b.opts.State = filepath.Join(b.dir, "state", "positions")
	return b
}

func (b *bundle) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bundle) write(name, text string) {
	b.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) add(name, text string) {
	b.Helper()
	if err := appendTo(b.path(name), []byte(text)); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) rename(from, to string) {
	b.Helper()
	if err := os.Rename(b.path(from), b.path(to)); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) open(patterns ...string) {
	b.Helper()
	var paths []string
	for _, p := range patterns {
		paths = append(paths, b.path(p))
	}
	var err error
	if b.Source, err = file.OpenSource(paths, &b.opts); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) close() {
	b.Helper()
	if err := b.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// read reads until nothing comes for the time of many looks, in a bubble, or
// until the end.
func (b *bundle) read() (items []*pipeline.Item) {
	b.Helper()
	for {
		ctx, cancel := context.WithTimeout(b.Context(), 10*b.opts.Poll+time.Second)
		more, err := b.Read(ctx)
		cancel()
		items = append(items, more...)
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded), err == io.EOF:
			return items
		default:
			b.Fatal(err)
		}
	}
}

func bodies(items []*pipeline.Item) (list []string) {
	for _, it := range items {
		list = append(list, string(it.Message.Body))
	}
	return list
}

// wants reads, compares, and acknowledges.
func (b *bundle) wants(lines ...string) {
	b.Helper()
	items := b.read()
	if got := bodies(items); !slices.Equal(got, lines) {
		b.Fatalf("got %q, want %q", got, lines)
	}
	b.ack(items)
}

func (b *bundle) ack(items []*pipeline.Item) {
	b.Helper()
	if err := b.Ack(b.Context(), items); err != nil {
		b.Fatal(err)
	}
}

// following is a test of a source that follows, in a bubble.
func following(t *testing.T, opts file.SourceOptions, check func(b *bundle)) {
	t.Helper()
	t.Parallel()
	opts.Follow = true
	if opts.Poll == 0 {
		opts.Poll = 100 * time.Millisecond
	}
	synctest.Test(t, func(t *testing.T) { check(setup(t, opts)) })
}

func TestFollowedLineWaitsForItsEnd(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.open("a.log")
		b.wants()
		b.write("a.log", "one\nhal")
		b.wants("one")
		b.add("a.log", "f")
		b.wants()
		b.add("a.log", "\r\n\n  \nthree")
		b.wants("half")
		b.close()
		b.open("a.log")
		b.wants()
		b.add("a.log", "\n")
		b.wants("three")
		b.close()
	})
}

func TestFollowedLineComesWithinOnePoll(t *testing.T) {
	following(t, file.SourceOptions{Poll: time.Second}, func(b *bundle) {
		b.open("a.log")
		b.wants()
		b.write("a.log", "one\n")
		start := time.Now()
		if items, err := b.Read(b.Context()); err != nil || len(items) != 1 || time.Since(start) > time.Second {
			b.Fatalf("%d items after %v, error %v", len(items), time.Since(start), err)
		}
		b.close()
	})
}

func TestFollowedFileIsReadOnWhenItIsRenamed(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "one\n")
		b.open("a.log")
		b.wants("one")
		b.add("a.log", "two\n")
		b.rename("a.log", "a.log.1")
		b.write("a.log", "four\n")
		b.add("a.log.1", "three\n") // its writer has not noticed yet
		if got := bodies(b.read()); len(got) != 3 || !slices.Contains(got, "two") || !slices.Contains(got, "three") || !slices.Contains(got, "four") {
			b.Fatalf("got %q", got)
		}
		b.add("a.log.1", "five, half")
		time.Sleep(15 * time.Second)
		b.wants()
		time.Sleep(30 * time.Second)
		b.wants("five, half")
		b.add("a.log.1", "too late\n")
		b.wants()
		b.close()
	})
}

func TestATruncatedFileIsReadFromItsBeginning(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "one\ntwo\nthree\n")
		b.open("a.log")
		b.wants("one", "two", "three")
		b.write("a.log", "four\n") // shorter
		b.wants("four")
		b.write("a.log", "a line that is longer than all before\n") // longer: its size tells nothing
		b.wants("a line that is longer than all before")
		b.close()
		b.write("a.log", "while no process read, another longer line has come\n")
		b.open("a.log")
		b.wants("while no process read, another longer line has come")
		b.close()
	})
}

// TestLineOfARewrittenFileHasANewPosition rewrites a file in place several times. The file
// keeps its inode, its creation and its first line, and the line is where it was. The line keeps
// its position when the same content is read again.
func TestLineOfARewrittenFileHasANewPosition(t *testing.T) {
	position := func(b *bundle, name, text string) string {
		b.Helper()
		items := b.read()
		for _, it := range items {
			if string(it.Message.Body) == text {
				id, err := key.AppendPosition(nil, &it.Message)
				if err != nil {
					b.Fatal(err)
				}
				if name != "" {
					b.ack(items)
				}
				return string(id)
			}
		}
		b.Fatalf("%s: %q is not in %q", name, text, bodies(items))
		return ""
	}
	for name, stopped := range map[string]bool{"running": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			following(t, file.SourceOptions{}, func(b *bundle) {
				taken := map[string]string{}
				b.write("a.log", "first\nsame\none\n")
				b.open("a.log")
				taken[position(b, "original", "same")] = "original"
				for _, rewritten := range []string{"two, and longer than before", "three", "four"} {
					if stopped {
						b.close()
					}
					b.write("a.log", "first\nsame\n"+rewritten+"\n")
					if stopped {
						b.open("a.log")
					}
					at := position(b, "", "same")
					if other, ok := taken[at]; ok {
						b.Errorf("the line of %q has the position of %q", rewritten, other)
					}
					taken[at] = rewritten
					b.close() // nothing is acknowledged
					b.open("a.log")
					if again := position(b, rewritten, "same"); again != at {
						b.Errorf("two deliveries of the line of %q have different positions", rewritten)
					}
				}
				b.close()
			})
		})
	}
}

func TestAcknowledgementOfATruncatedFileDoesNotPassTheNewContent(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "old 1\nold 2\n")
		b.open("a.log")
		old := b.read()
		b.write("a.log", "new 1\n")
		fresh := b.read()
		b.ack(old)
		b.close()
		b.open("a.log")
		b.wants(bodies(fresh)...)
		b.close()
	})
}

func TestAcknowledgementOfARewrittenFileThatHasGrownDoesNotPassTheNewContent(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "old 1\nold 2\n")
		b.open("a.log")
		old := b.read()
		b.write("a.log", "new 1\nnew 2\nnew 3\n")
		b.ack(old) // before the next look at the file
		b.close()
		b.open("a.log")
		b.wants("new 1", "new 2", "new 3")
		b.close()
	})
}

func TestAFileThatWasRenamedBetweenRunsIsReadToItsEnd(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "one\ntwo\n")
		b.open("a.log")
		items := b.read()
		b.ack(items[:1])
		b.close()
		b.add("a.log", "three\n")
		b.rename("a.log", "a.log.1")
		b.write("a.log", "four\n")
		b.open("a.log")
		got := bodies(b.read())
		slices.Sort(got)
		if want := []string{"four", "three", "two"}; !slices.Equal(got, want) {
			b.Fatalf("got %q, want %q", got, want)
		}
		b.close()
	})
}

// TestAFileThatWasCreatedAndRotatedUnreadNeedsAPattern has two rotations
// between two runs. The file between them was never known.
func TestAFileThatWasCreatedAndRotatedUnreadNeedsAPattern(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string][]string{"a.log": {"three", "two"}, "a.log*": {"between", "three", "two"}} {
		t.Run(pattern, func(t *testing.T) {
			following(t, file.SourceOptions{}, func(b *bundle) {
				b.write("a.log", "one\ntwo\n")
				b.open(pattern)
				items := b.read()
				b.ack(items[:1])
				b.close()
				b.rename("a.log", "a.log.2")
				b.write("a.log.1", "between\n")
				b.write("a.log", "three\n")
				b.open(pattern)
				got := bodies(b.read())
				slices.Sort(got)
				if !slices.Equal(got, want) {
					b.Fatalf("got %q, want %q", got, want)
				}
				b.close()
			})
		})
	}
}

func TestReplacedFileIsReadFromItsBeginning(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "same beginning\nold\n")
		b.open("a.log")
		b.wants("same beginning", "old")
		b.close()
		if err := os.Remove(b.path("a.log")); err != nil {
			b.Fatal(err)
		}
		b.write("a.log", "same beginning\nnew, and longer\n") // maybe with the inode of the old one
		b.open("a.log")
		b.wants("same beginning", "new, and longer")
		b.close()
	})
}

func TestFollowFindsNewFilesOfSeveralPatterns(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.open("*.log", "sub-*/x", "a.log")
		b.wants()
		b.write("b.log", "b\n")
		b.write("a.log", "a\n")
		b.write("c.txt", "not matched\n")
		b.wants("a", "b")
		if err := os.Mkdir(b.path("sub-1"), 0o700); err != nil {
			b.Fatal(err)
		}
		b.write("sub-1/x", "x\n")
		b.wants("x")
		b.close()
	})
}

func TestFromEndSkipsOldLinesInTheFirstRunOnly(t *testing.T) {
	following(t, file.SourceOptions{FromEnd: true}, func(b *bundle) {
		b.write("a.log", "old\nhal")
		b.open("*.log")
		b.wants()
		b.add("a.log", "f\nnew\n")
		b.wants("half", "new")
		b.write("b.log", "b\n")
		b.wants("b")
		b.close()
		b.add("a.log", "between\n")
		b.open("*.log")
		b.wants("between")
		b.close()
	})
}

func TestPausedFileIsNotReadWhileOthersAre(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "a1\n")
		b.write("b.log", "b1\n")
		b.open("*.log")
		items := b.read()
		b.Pause(items[0].Partition, true)
		b.add("a.log", "a2\n")
		b.add("b.log", "b2\n")
		b.wants("b2")
		b.Pause(items[0].Partition, false)
		b.wants("a2")
		b.close()
	})
}

func TestPositionsOfFilesThatAreGoneAreForgotten(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "one\n")
		b.open("a.log")
		b.wants("one")
		if err := os.Remove(b.path("a.log")); err != nil {
			b.Fatal(err)
		}
		b.wants()
		time.Sleep(time.Minute)
		b.wants()
		b.close()
		if state, err := os.ReadFile(b.opts.State); err != nil || bytes.Contains(state, []byte("a.log")) {
			b.Errorf("the state is %s, error %v", state, err)
		}
	})
}

func TestPositionsOfFilesThatDoNotComeBackAreForgottenAfterAWeek(t *testing.T) {
	following(t, file.SourceOptions{}, func(b *bundle) {
		b.write("a.log", "one\ntwo\n")
		b.open("a.log")
		b.wants("one", "two")
		b.close()
		if err := os.Mkdir(b.path("other"), 0o700); err != nil {
			b.Fatal(err)
		}
		b.rename("a.log", "other/a.log") // as when its file system is not mounted
		b.open("a.log")
		b.wants()
		b.close()
		b.rename("other/a.log", "a.log")
		b.add("a.log", "three\n")
		b.open("a.log")
		b.wants("three")
		b.close()
		b.rename("a.log", "other/a.log")
		b.open("a.log")
		b.wants()
		b.close()
		time.Sleep(8 * 24 * time.Hour)
		b.open("a.log")
		b.wants()
		b.close()
		b.rename("other/a.log", "a.log")
		b.open("a.log")
		b.wants("one", "two", "three")
		b.close()
	})
}

func TestPatternThatFindsNoRegularFileIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "in.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "in.l")); err != nil {
		t.Fatal(err)
	}
	_, err := file.OpenSource([]string{filepath.Join(dir, "in*")}, nil)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "in*: no such file or directory: write another path, or follow: true to wait for one") {
		t.Errorf("%v", err)
	}
}
