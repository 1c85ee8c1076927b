package storetest

import (
	"encoding/binary"
	"time"

	"github.com/semel-dev/semel"
)

// append appends a record in the log format of the logged store.
func (rec record) append(b []byte) []byte {
	for _, s := range []string{
		rec.Key.Scope, rec.Key.ID, rec.Holder, rec.owner.Name, string(rec.Fingerprint[:]), string(rec.Result.Data),
	} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	hold := uint64(0)
	if rec.hold {
		hold = 1
	}
	for _, n := range []uint64{
		uint64(rec.State), uint64(rec.Token), uint64(rec.Attempt), uint64(rec.Result.Kind), rec.owner.Nonce, hold,
	} {
		b = binary.AppendUvarint(b, n)
	}
	for _, t := range []time.Time{rec.FirstSeen, rec.LeaseEnd, rec.Expires} {
		b = appendTime(b, t)
	}
	return b
}

func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return binary.AppendVarint(b, 0)
	}
	return binary.AppendVarint(b, t.UnixNano())
}

// decoder reads the output of record.append.
type decoder struct {
	rest   []byte
	broken bool
}

func (d *decoder) record() (rec record) {
	rec.Key.Scope, rec.Key.ID, rec.Holder, rec.owner.Name = d.string(), d.string(), d.string(), d.string()
	copy(rec.Fingerprint[:], d.string())
	rec.Result.Data = []byte(d.string())
	rec.ResultSize = len(rec.Result.Data)
	rec.State, rec.Token, rec.Attempt = semel.State(d.uint()), semel.Token(d.uint()), int(d.uint())
	rec.Result.Kind, rec.owner.Nonce, rec.hold = semel.ResultKind(d.uint()), d.uint(), d.uint() == 1
	rec.FirstSeen, rec.LeaseEnd, rec.Expires = d.time(), d.time(), d.time()
	return rec
}

func (d *decoder) uint() uint64 {
	n, size := binary.Uvarint(d.rest)
	d.skip(size)
	return n
}

func (d *decoder) time() time.Time {
	n, size := binary.Varint(d.rest)
	if d.skip(size); n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func (d *decoder) string() string {
	n := int(d.uint())
	if n > len(d.rest) {
		n, d.broken = 0, true
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) skip(size int) {
	if size <= 0 {
		d.broken, d.rest = true, nil
		return
	}
	d.rest = d.rest[size:]
}
