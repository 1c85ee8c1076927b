package suite

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
)

// random generates the same ids in every run.
type random struct{ *rand.ChaCha8 }

func newRandom() random { return random{rand.NewChaCha8([32]byte{'s', 'e', 'm', 'e', 'l'})} }

// fill generates an id of 16 random bytes, or of the 36 characters of a UUID.
func (r random) fill(id []byte) {
	if len(id) == 16 {
		r.Read(id)
		return
	}
	var raw [16]byte
	r.Read(raw[:])
	hex.Encode(id[:8], raw[:4])
	hex.Encode(id[9:13], raw[4:6])
	hex.Encode(id[14:18], raw[6:8])
	hex.Encode(id[19:23], raw[8:10])
	hex.Encode(id[24:], raw[10:])
	id[8], id[13], id[18], id[23] = '-', '-', '-', '-'
}

// uuid returns an id of 36 characters. Its string shares no memory.
func (r random) uuid() string {
	var id [36]byte
	r.fill(id[:])
	return string(id[:])
}

// ids are many ids of one size in one string, which costs the garbage collector nothing
// during measurements.
type ids struct {
	count, size int
	text        string
}

func newIDs(count, size int) *ids {
	random := newRandom()
	text := make([]byte, count*size)
	for i := range count {
		random.fill(text[i*size:][:size])
	}
	return &ids{count, size, string(text)}
}

func (d *ids) at(i int) string { return d.text[i*d.size:][:d.size] }

var errNotFresh = errors.New("a new id was called a duplicate")

// wantFresh checks the answer to the claim of a new id.
func wantFresh(fresh bool, err error) error {
	if err == nil && !fresh {
		err = errNotFresh
	}
	return err
}

// liveBytes returns the size of the reachable heap. The second collection frees the
// objects that the first one finalised.
func liveBytes() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// count formats a number for people: 5M, 100k, 64.
func count(n int) string {
	switch {
	case n >= 1e6 && n%1e5 == 0:
		return fmt.Sprintf("%gM", float64(n)/1e6)
	case n >= 1e3 && n%1e3 == 0:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}
