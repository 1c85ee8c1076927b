//go:build unix

package dedup

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// wrapped is a writer around standard output, as a program may hand over.
type wrapped struct{ file *os.File }

func (w wrapped) Write(data []byte) (int, error) { return w.file.Write(data) }
func (w wrapped) Unwrap() io.Writer              { return w.file }

func TestClosedStandardOutputIsRefusedWhereKeysAreRemembered(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode    int
		store   bool
		refused bool
	}{
		// Go opens the null device for reading and writing in the place of
		// standard output that is closed.
		{os.O_RDWR, true, true},
		{os.O_RDWR, false, false},
		{os.O_WRONLY, true, false},
	} {
		b := setup(t)
		null, err := os.OpenFile(os.DevNull, test.mode, 0)
		if err != nil {
			t.Fatal(err)
		}
		opts := Options{Inputs: []string{b.file("in", "a\n")}, Stdout: wrapped{null}}
		if test.store {
			opts.Store = b.path("store")
		}
		_, _, err = b.run(t.Context(), opts)
		var refused *RefusedError
		if errors.As(err, &refused) != test.refused || !test.refused && err != nil {
			t.Fatalf("%+v: error %v", test, err)
		}
		if test.refused && !strings.Contains(err.Error(), "--output "+os.DevNull) {
			t.Errorf("error %q does not say what to do", err)
		}
		if _, err := os.Stat(b.path("store")); test.refused && err == nil {
			t.Error("a refused run made the store")
		}
		if err := null.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
