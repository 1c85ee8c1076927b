package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/vfs"
)

func TestFilesAreReadInOrderToTheirEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{})
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for i := range 3 {
		fmt.Fprintf(z, "gzip %d\n", i)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	b.write("1.jsonl", "\ufeffone\r\ntwo\n\nno end")
	b.write("2.jsonl", packed.String())
	b.write("3.jsonl", string(encoder.EncodeAll([]byte("zstd 0\nzstd 1"), nil)))
	b.write("4.jsonl", "")
	want := []string{"one", "two", "no end", "gzip 0", "gzip 1", "gzip 2", "zstd 0", "zstd 1"}
	b.open("*.jsonl")
	items := b.read()
	if got := bodies(items); !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	if o := items[1].Message.Origin; o.Offset != 8 || o.Source != b.path("1.jsonl") {
		t.Errorf("origin %+v", o)
	}
	b.ack(items[:4])
	b.ack(items[5:6]) // behind one that is not settled
	b.close()
	b.open("*.jsonl")
	b.wants(want[4:]...)
	b.close()
	b.open("*.jsonl")
	b.wants()
	b.close()
}

func TestCompressedFileThatEndsEarlyIsAnError(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{})
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for i := range 10_000 {
		fmt.Fprintf(z, "line %d\n", i*7919)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	b.write("in.gz", packed.String()[:packed.Len()/2])
	b.open("in.gz")
	for {
		items, err := b.Read(t.Context())
		if err != nil {
			if !strings.Contains(err.Error(), "in.gz ends in the middle") {
				t.Errorf("error %v", err)
			}
			break
		}
		if len(items) == 0 {
			t.Fatal("no item and no error")
		}
	}
	b.close()
}

func TestLineThatIsTooLongIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{MaxLine: 1000})
	long := strings.Repeat("x", 1000)
	b.write("in", "short\n"+long+"\r\n"+long+"x\nbehind\n")
	b.open("in")
	items, err := b.Read(t.Context())
	if err != nil || len(items) != 2 {
		t.Fatalf("%d items, error %v", len(items), err)
	}
	if _, err := b.Read(t.Context()); semel.Classify(err) != semel.ClassPermanent || !strings.Contains(err.Error(), "the line at byte 1008 is longer than 1000 bytes: split it") {
		t.Errorf("error %v", err)
	}
	b.close()
}

func TestLongLinesAreReadInOnePiece(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{})
	long := strings.Repeat("0123456789", 120_000)
	b.write("in", "short\n"+long+"\nshort\n")
	b.open("in")
	b.wants("short", long, "short")
	b.close()
}

func TestWrongOptionsAreAllNamed(t *testing.T) {
	t.Parallel()
	_, err := file.OpenSource([]string{"[", ""}, &file.SourceOptions{
		FromEnd: true, Poll: time.Microsecond, MaxLine: -1, SaveEvery: -1,
	})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("error %v", err)
	}
	for _, name := range []string{`"["`, `""`, "FromEnd", "Poll", "MaxLine", "SaveEvery"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
	if _, err := file.OpenSource(nil, nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("without paths: %v", err)
	}
	if _, err := file.OpenSource([]string{filepath.Join(t.TempDir(), "none")}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

func TestASourcePathMustBeAFile(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{})
	b.open("")
	if _, err := b.Read(t.Context()); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("a directory: %v", err)
	}
	b.close()
	b.write("a", "one\n")
	b.open("*") // a pattern skips what is not a file
	b.wants("one")
	b.close()
}

func TestStateBelongsToOneProcess(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{})
	b.write("in", "one\n")
	b.open("in")
	var locked *vfs.LockedError
	if _, err := file.OpenSource([]string{b.path("in")}, &b.opts); !errors.As(err, &locked) || locked.Name != b.opts.State+".lock" || !strings.Contains(err.Error(), "file: "+b.opts.State+" is held by "+locked.Holder) || semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("error %v", err)
	}
	b.close()
	b.open("in")
	b.wants("one")
	b.close()
}

func TestStateThatIsDamagedIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, file.SourceOptions{})
	b.write("in", "one\n")
	b.open("in")
	b.wants("one")
	b.close()
	b.write("state/positions", "{\"version\":2}")
	b.open("in")
	if _, err := b.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "version 2 is not known") {
		t.Errorf("error %v", err)
	}
	b.close()
}
