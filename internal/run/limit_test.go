package run

import (
	"testing"

	"github.com/semel-dev/semel/vfs"
)

// TestARunDoesNotOutgrowItsTable: the table has 32 bits for the place of a block.
func TestARunDoesNotOutgrowItsTable(t *testing.T) {
	t.Parallel()
	p := &Place{FS: vfs.OS{}, Dir: t.TempDir(), Size: func(meta uint32) int { return int(meta) }}
	w, err := Create(p, "a"+Suffix, 3)
	if err != nil {
		t.Fatal(err)
	}
	w.off = (1<<32 - 3) * unit
	for i := range byte(3) {
		e := make([]byte, unit-blockHead)
		e[7], e[16], e[17] = i, byte(len(e)&0xff), byte(len(e)>>8)
		if err = w.Add(e); err != nil {
			break
		}
	}
	if err == nil {
		err = w.closeBlock()
	}
	if err == nil {
		t.Errorf("a block at unit %d", w.run.index.at)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
}
