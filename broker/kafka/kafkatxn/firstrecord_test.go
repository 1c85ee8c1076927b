package kafkatxn

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/test/kafkatest"
)

func (b *bubble) look(opts TransactorOptions, ids ...string) []KnownKey {
	b.Helper()
	t, err := NewTransactor(&opts)
	if err != nil {
		b.Fatal(err)
	}
	var keys []semel.Key
	for _, id := range ids {
		keys = append(keys, semel.Key{Scope: opts.Key.Scope, ID: id})
	}
	known, err := t.Look(b.Context(), keys)
	if err != nil {
		b.Fatal(err)
	}
	return known
}

func TestLookTellsOfTheRecordThatWasFirst(t *testing.T) {
	t.Parallel()
	for name, repartition := range map[string]*Repartition{"one stage": nil, "two stages": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			looksForTheFirst(t, repartition)
		})
	}
}

func looksForTheFirst(t *testing.T, stage *Repartition) {
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		opts.Repartition = stage
		unused, err := NewTransactor(&opts)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := unused.Look(b.Context(), []semel.Key{{Scope: "s", ID: "0"}}); !errors.Is(err, ErrNoChangelog) {
			b.Errorf("before anything ran: %v", err)
		}
		b.Write(kafkatest.Numbered(0, 10, 2)...)
		b.Write(kafkatest.Numbered(0, 10, 2)...)
		p := b.start(opts)
		p.Wait(20, kafkatest.Settled)
		if stage != nil {
			time.Sleep(2 * tidyEvery) // the copies are deleted
		}
		began := time.Now()
		known := b.look(opts, "0", "7", "none")
		if len(known) != 2 {
			b.Fatalf("%+v, want two keys", known)
		}
		for _, k := range known {
			first := -1
			for i, r := range b.Read("in") {
				if string(r.Key) == k.Key.ID && (first < 0) {
					first = i
					if r.Partition != k.Partition || r.Offset != k.Offset || k.Topic != "in" {
						b.Errorf("%+v, the first was %d/%d", k, r.Partition, r.Offset)
					}
				}
			}
			if age := began.Sub(k.FirstSeen); age < 0 || age > 2*time.Minute || !k.Expires.Equal(k.FirstSeen.Add(time.Hour)) {
				b.Errorf("%+v at %v", k, began)
			}
		}
		// The program continues as if there had been no look.
		b.Write(kafkatest.Numbered(0, 12, 2)...)
		p.Wait(32, kafkatest.Settled)
		b.Exactly(12)
		p.Stop()
		if known = b.look(opts, "11"); len(known) != 1 {
			b.Errorf("after its end: %+v", known)
		}
		other := opts
		other.Key.Scope = "other"
		if known = b.look(other, "0"); len(known) != 0 {
			b.Errorf("in another scope: %+v", known)
		}
		time.Sleep(2 * time.Hour)
		if known = b.look(opts, "0"); len(known) != 0 {
			b.Errorf("after the window: %+v", known)
		}
	})
}

// TestLookTellsOfACopyWhoseInputIsGone has a record that was copied from a topic which
// the pipeline no longer reads when it decides.
func TestLookTellsOfACopyWhoseInputIsGone(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		kafkatest.Must(b.T, b.Cluster.CreateTopic("old", 1, nil))
		opts := b.options()
		opts.Repartition = &Repartition{}
		opts.Inputs = []string{"old", "in"}
		p := b.start(opts)
		b.Write(&kgo.Record{Topic: "old", Key: []byte("a"), Value: []byte("v")}, kafkatest.Record(0, "b", "v"))
		p.Wait(2, kafkatest.Settled)
		p.Stop()
		copied := &kgo.Record{Topic: "old", Key: []byte("c"), Value: []byte("v"), Timestamp: time.Now()}
		repartition.Wrap(copied, "g-repartition", 0, []byte("c"), time.Now())
		b.Write(copied)
		opts.Inputs = []string{"in"}
		p = b.start(opts)
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		for id, want := range map[string]string{"a": "old", "b": "in", "c": "g-repartition"} {
			if known := b.look(opts, id); len(known) != 1 || known[0].Topic != want {
				b.Errorf("%s: %+v, want it in %s", id, known, want)
			}
		}
	})
}

func TestOriginsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	value := keys.AppendInputs(nil, []string{"a", "a longer name"})
	var want []semel.Origin
	for _, o := range []semel.Origin{{Source: "a"}, {}, {Source: "a longer name", Partition: math.MaxInt32, Offset: math.MaxInt64}, {Source: "a", Partition: 3, Offset: 1 << 40}} {
		input := 0
		if o.Source != "" {
			input = 1 + slices.Index([]string{"a", "a longer name"}, o.Source)
		}
		value = keys.AppendOrigin(value, input, o.Partition, o.Offset)
		want = append(want, o)
	}
	got, err := keys.ParseOrigins(value, len(want))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for n := range value {
		if got, err := keys.ParseOrigins(value[:n], len(want)); err == nil {
			t.Errorf("of %d bytes %+v was read", n, got)
		}
	}
	if got, err := keys.ParseOrigins(append(value, 0), len(want)); err == nil {
		t.Errorf("with a byte more %+v was read", got)
	}
	if _, err := keys.ParseOrigins(keys.AppendOrigin(keys.AppendInputs(nil, []string{"a"}), 2, 0, 0), 1); err == nil {
		t.Error("an input that is not named was read")
	}
}
