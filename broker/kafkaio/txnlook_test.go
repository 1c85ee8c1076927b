package kafkaio

import (
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func (b *bubble) look(opts TransactorOptions, ids ...string) []KnownKey {
	b.Helper()
	t, err := NewTransactor(&opts)
	if err != nil {
		b.Fatal(err)
	}
	var keys []semel.Key
	for _, id := range ids {
		keys = append(keys, semel.Key{Scope: opts.Scope, ID: id})
	}
	known, err := t.Look(b.Context(), keys)
	if err != nil {
		b.Fatal(err)
	}
	return known
}

func TestLookTellsOfTheRecordThatWasFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		unused, err := NewTransactor(&opts)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := unused.Look(b.Context(), []semel.Key{{Scope: "s", ID: "0"}}); !errors.Is(err, ErrNoChangelog) {
			b.Errorf("before anything ran: %v", err)
		}
		b.write(numbered(0, 10, 2)...)
		b.write(numbered(0, 10, 2)...)
		p := b.start(opts)
		p.wait(20, settled)
		began := time.Now()
		known := b.look(opts, "0", "7", "none")
		if len(known) != 2 {
			b.Fatalf("%+v, want two keys", known)
		}
		for _, k := range known {
			first := -1
			for i, r := range b.read("in") {
				if string(r.Key) == k.Key.ID && (first < 0) {
					first = i
					if r.Partition != k.Partition || r.Offset != k.Offset || k.Topic != "in" {
						b.Errorf("%+v, the first was %d/%d", k, r.Partition, r.Offset)
					}
				}
			}
			if age := began.Sub(k.FirstSeen); age < 0 || age > time.Minute || !k.Expires.Equal(k.FirstSeen.Add(time.Hour)) {
				b.Errorf("%+v at %v", k, began)
			}
		}
		// The program goes on as if nobody had looked.
		b.write(numbered(0, 12, 2)...)
		p.wait(32, settled)
		b.exactly(12)
		p.stop()
		if known = b.look(opts, "11"); len(known) != 1 {
			b.Errorf("after its end: %+v", known)
		}
		other := opts
		other.Scope = "other"
		if known = b.look(other, "0"); len(known) != 0 {
			b.Errorf("in another scope: %+v", known)
		}
		time.Sleep(2 * time.Hour)
		if known = b.look(opts, "0"); len(known) != 0 {
			b.Errorf("after the window: %+v", known)
		}
	})
}
