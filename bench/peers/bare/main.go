// Command bare is the shortest loop that deduplicates a correct input. It searches the
// bytes of each line for the id, looks the id up in a table of 16-byte fingerprints, and
// writes the line. It does not check that a line is JSON, that "event_id" is a member of
// the outer object, or that it occurs once. Its rate is the yardstick for a program that
// checks these.
//
//	bare IN OUT
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/zeebo/xxh3"

	"github.com/semel-dev/semel/bench/internal/lines"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: bare IN OUT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(inName, outName string) error {
	in, err := os.Open(inName)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(outName)
	if err != nil {
		return err
	}
	defer out.Close()
	r := bufio.NewReaderSize(in, 1<<20)
	w := bufio.NewWriterSize(out, 1<<20)
	seen := newTable(1 << 20)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			id, ok := lines.EventID(line)
			if !ok {
				return fmt.Errorf("no event_id in %q", line)
			}
			if seen.add(xxh3.Hash128(id)) {
				if _, err := w.Write(line); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return out.Close()
}

// table is a set of fingerprints with open addressing. The zero fingerprint marks an
// empty slot. An id has it with a probability of 2^-128.
type table struct {
	slots []xxh3.Uint128
	used  int
}

func newTable(size int) *table { return &table{slots: make([]xxh3.Uint128, size)} }

// add adds f and reports whether it was new.
func (t *table) add(f xxh3.Uint128) bool {
	if t.used >= len(t.slots)/4*3 {
		old := t.slots
		t.slots, t.used = make([]xxh3.Uint128, 2*len(old)), 0
		for _, f := range old {
			if f != (xxh3.Uint128{}) {
				t.add(f)
			}
		}
	}
	mask := uint64(len(t.slots) - 1)
	for i := f.Lo & mask; ; i = (i + 1) & mask {
		switch t.slots[i] {
		case f:
			return false
		case xxh3.Uint128{}:
			t.slots[i] = f
			t.used++
			return true
		}
	}
}
