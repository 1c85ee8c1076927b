package logstore

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
)

// FuzzSegment opens a store whose only segment has arbitrary bytes. They follow
// a valid header, or form the entries of a record with a valid checksum. The
// store must report corruption, or open and work.
func FuzzSegment(f *testing.F) {
	content, err := os.ReadFile(filepath.Join(goldenDir, segmentName(1)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content[headerSize:], uint16(0))
	first := headOf(content[headerSize:], headerSize)
	f.Add(content[headerSize+recordHead:first.end()-recordTrail], uint16(first.count))
	f.Add([]byte{}, uint16(1))
	f.Add(make([]byte, 600), uint16(0))
	id := identity{store: storeID([]byte("golden store id.")), created: 1}
	f.Fuzz(func(t *testing.T, data []byte, count uint16) {
		if len(data) > minSegmentSize {
			return
		}
		img := encodeHeader(1, id.store, 1)
		if count == 0 {
			img = append(img, data...)
		} else {
			img = appendRecord(img, data, int(count))
		}
		fs := faultfs.New()
		writeFile(t, fs, "/s/"+identityName, id.encode())
		writeFile(t, fs, "/s/"+segmentName(1), img)
		s, err := Open("/s", &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes})
		if errors.Is(err, semel.ErrCorrupt) || errors.Is(err, semel.ErrStoreFull) {
			return
		}
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		n := int64(0)
		for _, err := range s.List(context.Background(), semel.ListOptions{State: semel.Done}) {
			if err != nil {
				t.Fatalf("List: %v", err)
			}
			n++
		}
		if c, err := s.Count(context.Background()); err != nil || c.Done < n {
			t.Fatalf("%d done keys are listed, %d counted, %v", n, c.Done, err)
		}
		wantAll(t, claimDone(t, s, 0, 3, semel.Forever), semel.Fresh)
		if err := s.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	})
}

func TestRecordWithADurablePositionBeyondTheLogIsCorrupt(t *testing.T) {
	t.Parallel()
	id := identity{store: storeID([]byte("golden store id.")), created: 1}
	for _, synced := range []int{headerSize + 1, 1 << 20, math.MaxUint32} {
		img := appendRecordSynced(encodeHeader(1, id.store, 1), nil, 0, synced)
		fs := faultfs.New()
		writeFile(t, fs, "/s/"+identityName, id.encode())
		writeFile(t, fs, "/s/"+segmentName(1), img)
		if _, err := Open("/s", &Options{FS: fs}); !errors.Is(err, semel.ErrCorrupt) {
			t.Errorf("synced %d: Open: %v, want ErrCorrupt", synced, err)
		}
	}
}

// appendRecord appends a valid record with the given body.
func appendRecord(img, body []byte, count int) []byte {
	return appendRecordSynced(img, body, count, headerSize)
}

// appendRecordSynced appends a record that states how much of the segment was
// durable.
func appendRecordSynced(img, body []byte, count, synced int) []byte {
	seed := crc32.Checksum(img[:headerSize], castagnoli)
	r := record{off: len(img), length: emptyRecord + len(body)&^3, time: 1, synced: synced, seq: 1, count: count}
	b := append(make([]byte, recordHead), body[:len(body)&^3]...)
	b = binary.LittleEndian.AppendUint32(b, trailer)
	r.encodeHead(b)
	binary.LittleEndian.PutUint32(b, crc32.Update(seed, castagnoli, b[4:len(b)-recordTrail]))
	return append(img, b...)
}

func writeFile(t *testing.T, fs *faultfs.FS, name string, content []byte) {
	t.Helper()
	if err := fs.MkdirAll(filepath.Dir(name)); err != nil {
		t.Fatal(err)
	}
	file, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
