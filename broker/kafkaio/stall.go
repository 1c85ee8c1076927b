package kafkaio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// mostTransaction is the longest that brokers let a transaction be open by default
// (transaction.max.timeout.ms).
const mostTransaction = 15 * time.Minute

// reading is a group, and the partitions that this process reads in it.
type reading struct {
	group string
	parts []partitionID
	// changelog returns the topic with the keys of an input. Nil: there are no keys.
	changelog func(topic string) string
}

// stallWatch finds partitions that cannot be read any further because of a transaction
// that does not end: in the partition, in its changelog, or in the group's offsets. One
// goroutine uses it.
type stallWatch struct {
	admin *Admin
	// patience is for how long a partition must not move.
	patience time.Duration
	held     map[groupPartition]standing
}

type groupPartition struct {
	group string
	partitionID
}

// standing is where a partition stands, and since when it has been held there.
type standing struct {
	progress
	since time.Time
}

// progress is what changes when a partition moves: the offset that the group committed,
// and the last stable offsets of the partition and of its changelog.
type progress struct{ committed, stable, keys int64 }

// holdup is what may hold a partition up.
type holdup struct {
	groupPartition
	input, keys, offsets bool // where a transaction is open
	changelog            string
	since                time.Time
}

// look returns as stalled an error that names a partition which has been held up for too
// long, and the command that helps. With failed, brokers did not answer, and nothing is
// known.
func (w *stallWatch) look(ctx context.Context, readings []reading) (stalled, failed error) {
	now, before := time.Now(), w.held
	w.held = map[groupPartition]standing{}
	var list []holdup
	for _, r := range readings {
		more, err := w.holdups(ctx, r, now, before)
		if err != nil {
			w.held = before
			return nil, err
		}
		list = append(list, more...)
	}
	list = slices.DeleteFunc(list, func(h holdup) bool { return now.Sub(h.since) < w.patience })
	if len(list) == 0 {
		return nil, nil
	}
	slices.SortFunc(list, func(a, b holdup) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.number, b.number))
	})
	return w.explain(ctx, list, now)
}

// holdups returns the partitions of a group that have more records and that an open
// transaction may hold up, and notes since when each has not moved.
func (w *stallWatch) holdups(ctx context.Context, r reading, now time.Time, before map[groupPartition]standing) ([]holdup, error) {
	if len(r.parts) == 0 {
		return nil, nil
	}
	var topics []string
	for _, id := range r.parts {
		topics = append(topics, id.topic)
		if r.changelog != nil {
			topics = append(topics, r.changelog(id.topic))
		}
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	stable, err := w.admin.adm.ListCommittedOffsets(ctx, topics...)
	ends, err2 := w.admin.adm.ListEndOffsets(ctx, topics...) // later: what is open now is in front of its end
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	committed, undecided, err := fetchOffsets(ctx, w.admin, r.group, r.parts)
	if err != nil {
		return nil, err
	}
	var list []holdup
	for _, id := range r.parts {
		h := holdup{groupPartition: groupPartition{r.group, id}, offsets: undecided[id]}
		at := progress{committed: committed[id]}
		var end int64
		at.stable, end, h.input = openAt(stable, ends, id)
		if r.changelog != nil {
			h.changelog = r.changelog(id.topic)
			at.keys, _, h.keys = openAt(stable, ends, partitionID{h.changelog, id.number})
		}
		if more := end > at.committed; !h.input && !(more && (h.keys || h.offsets)) {
			continue
		}
		if old, ok := before[h.groupPartition]; ok && old.progress == at {
			h.since = old.since
		} else {
			h.since = now
		}
		w.held[h.groupPartition] = standing{at, h.since}
		list = append(list, h)
	}
	return list, nil
}

// openAt returns the last stable offset and the end of a partition, and whether a
// transaction is open between them.
func openAt(stable, ends kadm.ListedOffsets, id partitionID) (lso, end int64, open bool) {
	s, ok := stable.Lookup(id.topic, id.number)
	e, ok2 := ends.Lookup(id.topic, id.number)
	known := ok && ok2 && s.Err == nil && e.Err == nil
	return s.Offset, e.Offset, known && s.Offset < e.Offset
}

// fetchOffsets returns the offsets that a group has committed, and the partitions for
// which a transaction has written offsets and not ended. A member that is given such a
// partition waits for the end before it reads.
func fetchOffsets(ctx context.Context, a *Admin, group string, parts []partitionID) (committed map[partitionID]int64, undecided map[partitionID]bool, err error) {
	committed, undecided = map[partitionID]int64{}, map[partitionID]bool{}
	for _, stable := range []bool{true, false} {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group, req.RequireStable = group, stable
		for _, id := range parts {
			i := slices.IndexFunc(req.Topics, func(t kmsg.OffsetFetchRequestTopic) bool { return t.Topic == id.topic })
			if i < 0 {
				i = len(req.Topics)
				req.Topics = append(req.Topics, kmsg.OffsetFetchRequestTopic{Topic: id.topic})
			}
			req.Topics[i].Partitions = append(req.Topics[i].Partitions, id.number)
		}
		answer, err := req.RequestWith(ctx, a.client)
		if err != nil {
			return nil, nil, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
		}
		note := func(topic string, number int32, at int64, code int16) {
			id, err := partitionID{topic, number}, kerr.ErrorForCode(code)
			switch {
			case stable && errors.Is(err, kerr.UnstableOffsetCommit):
				undecided[id] = true
			case err == nil:
				committed[id] = at
			}
		}
		for _, t := range answer.Topics { // brokers before 3.0
			for _, p := range t.Partitions {
				note(t.Topic, p.Partition, p.Offset, p.ErrorCode)
			}
		}
		for _, g := range answer.Groups {
			for _, t := range g.Topics {
				for _, p := range t.Partitions {
					note(t.Topic, p.Partition, p.Offset, p.ErrorCode)
				}
			}
		}
		if len(undecided) == 0 {
			break // all were told
		}
	}
	return committed, undecided, nil
}

// explain finds the transaction behind each of some partitions, and returns the error
// of those that it holds up for longer than it may be open.
func (w *stallWatch) explain(ctx context.Context, list []holdup, now time.Time) (stalled, failed error) {
	var in Places
	for _, h := range list {
		if h.input {
			in.Topics = append(in.Topics, h.topic)
		}
		if h.keys {
			in.Topics = append(in.Topics, h.changelog)
		}
		if h.offsets {
			in.Groups = append(in.Groups, h.group)
		}
	}
	slices.Sort(in.Topics)
	slices.Sort(in.Groups)
	in = Places{slices.Compact(in.Topics), slices.Compact(in.Groups)}
	open, hidden := w.admin.Open(ctx, in)
	if hidden != nil && !isHidden(hidden) {
		return nil, hidden
	}
	var first error
	count := 0
	for _, h := range list {
		why, known, err := w.reason(ctx, &h, open, now)
		if err != nil {
			return nil, err
		}
		if !known && now.Sub(h.since) >= max(w.patience, mostTransaction) {
			why = "a transaction that does not end is open, and the brokers do not show which: " + w.list(in)
		}
		if why == "" {
			continue
		}
		if count++; first == nil {
			first = fmt.Errorf("kafkaio: %s/%d has more records and has not been read for %v: %s", h.topic, h.number, now.Sub(h.since).Round(time.Second), why)
		}
	}
	if count > 1 {
		first = fmt.Errorf("%w; and %d more partitions: %s", first, count-1, w.list(in))
	}
	return first, nil
}

// isHidden reports whether an error says that the user may not look at transactions, or
// that the brokers are too old to show them.
func isHidden(err error) bool {
	return errors.Is(err, ErrOffsetsHidden) || errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) || errors.Is(err, kerr.UnsupportedVersion)
}

// list returns the command that lists what is open in some places.
func (w *stallWatch) list(in Places) string {
	topics := slices.Clone(in.Topics)
	if len(in.Groups) > 0 {
		topics = append(topics, offsetsTopic)
	}
	return fmt.Sprintf("semel kafka txn ls --topic %s %s", strings.Join(topics, " --topic "), reachFlags(w.admin.client))
}

// reason says which of some open transactions holds a partition up for longer than it
// may, and what helps. It is "" if none does; known says whether there is one that will
// end.
func (w *stallWatch) reason(ctx context.Context, h *holdup, open []OpenTransaction, now time.Time) (why string, known bool, err error) {
	var offsets map[int32]struct{}
	if h.offsets {
		set, err := w.admin.offsetsOf(ctx, []string{h.group})
		if err != nil && !isHidden(err) {
			return "", false, err
		}
		offsets = set[offsetsTopic]
	}
	stood := now.Sub(h.since)
	for i := range open {
		o := &open[i]
		_, ofGroup := offsets[o.Partition]
		own := h.keys && o.Topic == h.changelog && o.Partition == h.number || o.Topic == offsetsTopic && ofGroup
		if !own && !(h.input && o.Topic == h.topic && o.Partition == h.number) {
			continue
		}
		what := fmt.Sprintf("a transaction of producer %d is open in %s/%d since offset %d", o.ProducerID, o.Topic, o.Partition, o.Start)
		if o.Topic == offsetsTopic {
			what += ", where the offsets of group " + h.group + " are"
		}
		if o.Hanging {
			// Coordinators may hide the transactions of others from this user.
			if o.ID == "" && !own && stood < mostTransaction {
				continue
			}
			return fmt.Sprintf("%s, and no coordinator will end it: %s", what, o.abortCommand(reachFlags(w.admin.client))), true, nil
		}
		described, err := w.admin.Transactions(ctx, o.ID)
		switch {
		case errors.Is(err, ErrNoTransaction):
		case err != nil:
			return "", false, err
		case stood < described[0].Timeout:
			known = true
		default:
			return fmt.Sprintf("%s as %s, for longer than its time-out of %v: semel kafka txn describe %s %s", what, o.ID, described[0].Timeout, o.ID, reachFlags(w.admin.client)), true, nil
		}
	}
	return "", known, nil
}
