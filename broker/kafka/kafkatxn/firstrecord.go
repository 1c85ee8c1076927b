package kafkatxn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/internal/digest"
)

// ErrNoChangelog says that no pipeline has written keys yet.
var ErrNoChangelog = errors.New("there is no changelog yet")

// KnownKey is what a Transactor knows of a key in one partition of an input.
type KnownKey struct {
	Key semel.Key
	// Topic, Partition and Offset are those of the first record, whose output is
	// committed. With Repartition they are those of the input record. If its topic is
	// no longer an input, they are those of the copy.
	Topic     string
	Partition int32
	Offset    int64
	// Digest represents the key in this partition.
	Digest semel.Digest
	// FirstSeen is the time of that record by which it counts. At Expires another
	// record of the key is new again; zero means never. By event time, that applies to
	// a record that is as late as Expires.
	FirstSeen, Expires time.Time
}

// Look returns the known entries of keys, by topic, partition and offset. It reads the
// committed records of the changelog that may still count, and writes nothing. The
// program may run at the same time, here or elsewhere. Look blocks until all records
// are read. An error that wraps ErrNoChangelog says that no key was remembered yet.
func (t *Transactor) Look(ctx context.Context, keys []semel.Key) ([]KnownKey, error) {
	first, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := cluster.Dial(first, t.clientOptions(cluster.ReadOptions()...)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	l := &looking{t: t, keys: keys, inputs: map[string]string{}, ends: cluster.Extent{}, digests: map[cluster.Partition][]semel.Digest{}, found: map[lookedUp]KnownKey{}, newest: map[cluster.Partition]int64{}}
	from, err := l.extent(ctx, kadm.NewClient(client))
	if err != nil {
		return nil, err
	}
	client.AddConsumePartitions(from)
	if err := l.ends.Read(ctx, client, func(r *kgo.Record) (bool, error) { return true, l.record(r) }); err != nil {
		return nil, err
	}
	return l.known(), nil
}

type lookedUp struct {
	id  cluster.Partition // of the changelog
	key int
}

// looking is one call of Look.
type looking struct {
	t       *Transactor
	keys    []semel.Key
	inputs  map[string]string                    // by changelog
	ends    cluster.Extent                       // partitions that are not read to their ends
	digests map[cluster.Partition][]semel.Digest // of the keys; each partition has its own secret
	found   map[lookedUp]KnownKey
	newest  map[cluster.Partition]int64 // the greatest stream time
}

// extent returns where to read from.
func (l *looking) extent(ctx context.Context, adm *kadm.Client) (map[string]map[int32]kgo.Offset, error) {
	var names []string
	for _, input := range l.t.decided {
		name := l.t.changelogs[input][0].name
		names = append(names, name)
		l.inputs[name] = input
	}
	topics, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("kafka: changelog: %w", err)
	}
	for _, name := range names {
		switch err := topics[name].Err; {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			return nil, fmt.Errorf("topic %s: %w", name, ErrNoChangelog)
		case err != nil:
			return nil, fmt.Errorf("kafka: changelog %s: %w", name, err)
		}
	}
	first, last, err := cluster.CommittedOffsets(ctx, adm, names...)
	if err != nil {
		return nil, fmt.Errorf("kafka: changelog: %w", err)
	}
	live, err := restorer{l.t}.live(ctx, adm, time.Now().UnixMilli())
	if err != nil {
		return nil, err
	}
	from := map[string]map[int32]kgo.Offset{}
	last.Each(func(end kadm.ListedOffset) {
		start, _ := first.Lookup(end.Topic, end.Partition)
		at := start.Offset
		if alive, ok := live.Lookup(end.Topic, end.Partition); ok && alive.Offset >= 0 {
			at = max(at, alive.Offset)
		}
		if at >= end.Offset {
			return
		}
		l.ends.Add(from, end, at)
	})
	return from, nil
}

// record looks for the keys in one changelog record.
func (l *looking) record(r *kgo.Record) error {
	id := cluster.Partition{Topic: r.Topic, Number: r.Partition}
	c, err := keys.Parse(r.Value)
	if err != nil {
		return fmt.Errorf("kafka: %s/%d at %d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	if c.Kind == keys.KindBarrier {
		return nil
	}
	l.newest[id] = max(l.newest[id], c.StreamTime)
	digests := l.digests[id]
	if digests == nil {
		scoped := map[string]digest.Scoped{}
		hasher := digest.New(c.Secret)
		for _, k := range l.keys {
			if _, ok := scoped[k.Scope]; !ok {
				scoped[k.Scope] = hasher.Scope(k.Scope)
			}
			of := scoped[k.Scope]
			digests = append(digests, of.String(k.ID))
		}
		l.digests[id] = digests
	}
	var from []semel.Origin
	for _, h := range r.Headers {
		if h.Key == keys.HeaderOrigins {
			if from, err = keys.ParseOrigins(h.Value, c.Len()); err != nil {
				return fmt.Errorf("kafka: %s/%d at %d: header %s: %w", r.Topic, r.Partition, r.Offset, h.Key, err)
			}
		}
	}
	var e keys.Entry
	for i := range c.Len() {
		c.At(i, &e)
		at := slices.Index(digests, e.Digest)
		if at < 0 {
			continue
		}
		known := KnownKey{
			Key: l.keys[at], Topic: l.inputs[id.Topic], Partition: id.Number, Offset: e.Offset, Digest: e.Digest, FirstSeen: time.UnixMilli(e.Time),
		}
		if from != nil && from[i].Source != "" {
			known.Topic, known.Partition, known.Offset = from[i].Source, from[i].Partition, from[i].Offset
		}
		l.found[lookedUp{id, at}] = known
	}
	return nil
}

// known returns the entries that have not expired.
func (l *looking) known() []KnownKey {
	var list []KnownKey
	w := &l.t.windows
	for at, k := range l.found {
		now := time.UnixMilli(w.Present(l.newest[at.id], time.Now().UnixMilli())).Add(-w.Grace)
		if w.Window < semel.Forever {
			if k.Expires = k.FirstSeen.Add(w.Window); !k.Expires.After(now) {
				continue
			}
		}
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b KnownKey) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return list
}
