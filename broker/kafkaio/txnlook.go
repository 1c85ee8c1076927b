package kafkaio

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
	"github.com/semel-dev/semel/internal/digest"
)

// ErrNoChangelog: no pipeline has written down what it knows of keys yet.
var ErrNoChangelog = errors.New("there is no changelog yet")

// KnownKey is what a Transactor knows of a key in one partition of an input.
type KnownKey struct {
	Key semel.Key
	// Topic, Partition and Offset are those of the record that was first, whose
	// output is committed. With Repartition they are those of the record in the
	// input; if its topic was no input any more, those of its copy.
	Topic     string
	Partition int32
	Offset    int64
	// Digest stands for the key in this partition.
	Digest semel.Digest
	// FirstSeen is the time of that record by which it counts, Expires when
	// another one is new again; zero is never. By event time it is a record that is
	// as late as Expires which is new.
	FirstSeen, Expires time.Time
}

// lookFirst is how long a broker may take to answer at first.
const lookFirst = 10 * time.Second

// Look returns what is known of keys, by topic, partition and offset. It reads what
// is committed of the changelog, from the first record that may still count, and
// writes nothing: it may run beside the program, and also where that runs
// elsewhere. It blocks until all of it was read. An error that wraps ErrNoChangelog
// says that nothing was remembered yet.
func (t *Transactor) Look(ctx context.Context, keys []semel.Key) ([]KnownKey, error) {
	client, err := kgo.NewClient(t.clientOptions(readOptions()...)...)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	defer client.Close()
	first, cancel := context.WithTimeout(ctx, lookFirst)
	defer cancel()
	if err := reach(first, client); err != nil {
		return nil, err
	}
	l := &looking{t: t, keys: keys, inputs: map[string]string{}, ends: extent{}, digests: map[partitionID][]semel.Digest{}, found: map[lookedUp]KnownKey{}, newest: map[partitionID]int64{}}
	from, err := l.extent(ctx, kadm.NewClient(client))
	if err != nil {
		return nil, err
	}
	client.AddConsumePartitions(from)
	if err := l.ends.read(ctx, client, func(r *kgo.Record) (bool, error) { return true, l.record(r) }); err != nil {
		return nil, err
	}
	return l.known(), nil
}

type lookedUp struct {
	id  partitionID // of the changelog
	key int
}

// looking is one call of Look.
type looking struct {
	t       *Transactor
	keys    []semel.Key
	inputs  map[string]string              // by changelog
	ends    extent                         // where there is something left to read
	digests map[partitionID][]semel.Digest // of the keys; each partition has its own
	found   map[lookedUp]KnownKey
	newest  map[partitionID]int64 // the greatest stream time
}

// extent finds out what there is to read.
func (l *looking) extent(ctx context.Context, adm *kadm.Client) (map[string]map[int32]kgo.Offset, error) {
	o := &l.t.opts
	var names []string
	for _, input := range o.reads() {
		name := o.changelogOf(input)
		names = append(names, name)
		l.inputs[name] = input
	}
	topics, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: changelog: %w", err)
	}
	for _, name := range names {
		switch err := topics[name].Err; {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			return nil, fmt.Errorf("topic %s: %w", name, ErrNoChangelog)
		case err != nil:
			return nil, fmt.Errorf("kafkaio: changelog %s: %w", name, err)
		}
	}
	first, last, err := committedOffsets(ctx, adm, names...)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: changelog: %w", err)
	}
	var live kadm.ListedOffsets
	if keep := l.t.windows.retention(); !l.t.windows.eventTime && keep != semel.Forever {
		live, err = adm.ListOffsetsAfterMilli(ctx, time.Now().Add(-keep).UnixMilli()-1, names...)
		if err := errors.Join(err, live.Error()); err != nil {
			return nil, fmt.Errorf("kafkaio: changelog: %w", err)
		}
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
		l.ends.add(from, end, at)
	})
	return from, nil
}

// record looks for the keys in one record of the changelog.
func (l *looking) record(r *kgo.Record) error {
	id := partitionID{r.Topic, r.Partition}
	c, err := parseChangelog(r.Value)
	if err != nil {
		return fmt.Errorf("kafkaio: %s/%d at %d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	if c.kind == kindBarrier {
		return nil
	}
	l.newest[id] = max(l.newest[id], c.streamTime)
	digests := l.digests[id]
	if digests == nil {
		scoped := map[string]digest.Scoped{}
		hasher := digest.New(c.secret)
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
		if h.Key == headerOrigins {
			if from, err = parseOrigins(h.Value, c.len()); err != nil {
				return fmt.Errorf("kafkaio: %s/%d at %d: header %s: %w", r.Topic, r.Partition, r.Offset, h.Key, err)
			}
		}
	}
	var e entry
	for i := range c.len() {
		c.at(i, &e)
		at := slices.Index(digests, e.digest)
		if at < 0 {
			continue
		}
		known := KnownKey{
			Key: l.keys[at], Topic: l.inputs[id.topic], Partition: id.number, Offset: e.offset, Digest: e.digest, FirstSeen: time.UnixMilli(e.time),
		}
		if from != nil && from[i].Source != "" {
			known.Topic, known.Partition, known.Offset = from[i].Source, from[i].Partition, from[i].Offset
		}
		l.found[lookedUp{id, at}] = known
	}
	return nil
}

// known returns what has not expired.
func (l *looking) known() []KnownKey {
	var list []KnownKey
	w := &l.t.windows
	for at, k := range l.found {
		now := time.Now()
		if w.eventTime {
			now = time.UnixMilli(l.newest[at.id]).Add(-w.grace)
		}
		if w.window < semel.Forever {
			if k.Expires = k.FirstSeen.Add(w.window); !k.Expires.After(now) {
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
