package state

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

// cutOne cuts an entry of a length and as many bytes. Its first byte is its id.
func cutOne(b []byte) (id, rest []byte, ok bool) {
	n := int(b[0])
	if n == 0 || n >= len(b) {
		return nil, nil, false
	}
	return b[1:2], b[1+n:], true
}

var testProgress = Progress{Watermark: 5, Emitted: 3, Partly: 4, Cursor: "cur"}

// TestStoredChangelogRecordsAreStillRead compares with bytes that a changelog on a broker may have.
func TestStoredChangelogRecordsAreStillRead(t *testing.T) {
	t.Parallel()
	ids := "01000000000000000000000000000000" + "02000000000000000000000000000000"
	bySource := testProgress
	bySource.Sources = "xyz"
	for name, test := range map[string]struct {
		form     Form
		progress Progress
		want     string
	}{
		"windows":           {Windows, testProgress, "0203030001000000" + ids + "050000000000000003000000000000000400000000000000" + "637572" + "026161"},
		"windows, bySource": {Windows, bySource, "0204030001000000" + ids + "050000000000000003000000000000000400000000000000" + "637572" + "0378797a" + "026161"},
		"held":              {Keep, Progress{Watermark: 5}, "4103000001000000" + ids + "0500000000000000" + "026161"},
		"held, bySource":    {Keep, Progress{Watermark: 5, Sources: "xyz"}, "4104000001000000" + ids + "0500000000000000" + "0378797a" + "026161"},
		"before the epoch":  {Keep, Progress{Watermark: -1}, "4103000001000000" + ids + "ffffffffffffffff" + "026161"},
		"windows, no moves": {Windows, Progress{}, "0203000001000000" + ids + "000000000000000000000000000000000000000000000000" + "026161"},
	} {
		var w Writer
		w.Begin(test.form, ID{1}, ID{2}, &test.progress, 1000)
		at := w.Add([]byte("\x02aa"))
		records := w.Records()
		if len(records) != 1 || hex.EncodeToString(records[0]) != test.want || at.Record != 0 || at.At != len(records[0])-3 || w.Size() != len(records[0]) {
			t.Errorf("%s: %x, the entry at %+v, size %d; want %s", name, records, at, w.Size(), test.want)
			continue
		}
		r, err := Parse(test.form, records[0], cutOne)
		if err != nil || r.Progress != test.progress || r.Definition != (ID{1}) || r.Topic != (ID{2}) || r.Nonce != (ID{}) || r.Len() != 1 || r.At(r.Entries[1:]) != at.At+1 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		for n := range records[0] {
			if _, err := Parse(test.form, records[0][:n], cutOne); !errors.Is(err, ErrRecord) {
				t.Errorf("%s: %d bytes of %d: %v", name, n, len(records[0]), err)
			}
		}
		if _, err := Parse(test.form, append(records[0], "\x02bb"...), cutOne); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: with an entry more: %v", name, err)
		}
	}
}

func TestRecordOfAnotherFormatHasNoDefinition(t *testing.T) {
	t.Parallel()
	var w Writer
	w.Begin(Windows, ID{1}, ID{2}, &testProgress, 1000)
	if r, err := Parse(Keep, w.Records()[0], cutOne); err != nil || r.Definition != (ID{}) || r.Nonce != (ID{}) || r.Topic != (ID{2}) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, form := range []Form{Windows, Keep} {
		if r, err := Parse(Keep, Barrier(form, ID{9}, ID{2}), cutOne); err != nil || r.Nonce != (ID{9}) || r.Definition != (ID{}) || r.Len() != 0 {
			t.Errorf("%d: a barrier: %+v, %v", form, r, err)
		}
	}
	barrier := Barrier(Keep, ID{9}, ID{2})
	barrier[4] = 1
	if _, err := Parse(Keep, append(barrier, "\x02aa"...), cutOne); !errors.Is(err, ErrRecord) {
		t.Errorf("a barrier with an entry: %v", err)
	}
}

func TestEntriesAreSplitByTheirSize(t *testing.T) {
	t.Parallel()
	var w Writer
	for range 2 { // the second transaction uses the memory again
		w.Begin(Keep, ID{1}, ID{2}, &Progress{}, Keep.HeaderSize()+6)
		entries := []string{"\x02a1", "\x02b2", "\x02c3", "\x08d4444444", "\x02e5"}
		var spots []Spot
		for _, e := range entries {
			spots = append(spots, w.Add([]byte(e)))
		}
		records := w.Records()
		if len(records) != 4 {
			t.Fatalf("%d records, want 4: %q", len(records), records)
		}
		for i, at := range spots {
			if !bytes.HasPrefix(records[at.Record][at.At:], []byte(entries[i])) {
				t.Errorf("%q is not at %+v", entries[i], at)
			}
		}
	}
	w.Begin(Keep, ID{1}, ID{2}, &Progress{}, 1)
	if records := w.Records(); len(records) != 1 || len(records[0]) != Keep.HeaderSize() {
		t.Errorf("without entries: %q", records)
	}
}
