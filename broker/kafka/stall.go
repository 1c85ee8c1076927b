package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// mostTransaction is the longest time that brokers let a transaction be open by default
// (transaction.max.timeout.ms).
const mostTransaction = 15 * time.Minute

// Reading is a consumer group and the partitions that this process reads in it.
type Reading struct {
	Group string
	// Partitions are partition numbers by topic.
	Partitions map[string][]int32
	// Changelogs returns the topics with the keys and the windows of an input. Nil means
	// that none exist.
	Changelogs func(topic string) []string
}

// StallWatch finds partitions in which reading is blocked by a transaction that does
// not end. The transaction may be in the partition, in its changelog or in the group's
// offsets. One goroutine uses it.
type StallWatch struct {
	admin    *Admin
	patience time.Duration
	held     map[groupPartition]standing
}

// NewStallWatch returns a StallWatch. It uses the client and does not close it. A
// partition is held up if it has not moved for the time patience.
func NewStallWatch(client *kgo.Client, patience time.Duration) *StallWatch {
	return &StallWatch{admin: &Admin{client: client, adm: kadm.NewClient(client)}, patience: patience}
}

type groupPartition struct {
	group string
	cluster.Partition
}

// standing is the progress of a partition, and since when it has not changed.
type standing struct {
	progress
	since time.Time
}

// progress is what changes when a partition moves: the offset that the group committed,
// and the last stable offsets of the partition and of its changelogs together.
type progress struct{ committed, stable, keys int64 }

// holdup is a partition that may be held up.
type holdup struct {
	groupPartition
	input, keys, offsets bool // there is an open transaction
	changelog            string
	since                time.Time
}

// OpenError names a partition that waits for a transaction which its producer or its
// coordinator will end, and the command that shows the transaction.
type OpenError struct{ text string }

// Error implements error.
func (e *OpenError) Error() string { return e.text }

// Look returns as stalled an error that names a partition which has been held up for
// too long, and the command that helps. If no such partition is known, and one waits
// for a transaction that will end, stalled is an [*OpenError]. If brokers did not answer, it returns failed,
// and nothing is known. It blocks until the brokers have answered or ctx ends.
func (w *StallWatch) Look(ctx context.Context, readings []Reading) (stalled, failed error) {
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
	list = slices.DeleteFunc(list, func(h holdup) bool { return now.Sub(h.since) < min(w.patience, time.Second) })
	if len(list) == 0 {
		return nil, nil
	}
	slices.SortFunc(list, func(a, b holdup) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Number, b.Number))
	})
	return w.explain(ctx, list, now)
}

// holdups returns the partitions of a group that have more records and that an open
// transaction may hold up. It notes since when each has not moved.
func (w *StallWatch) holdups(ctx context.Context, r Reading, now time.Time, before map[groupPartition]standing) ([]holdup, error) {
	if len(r.Partitions) == 0 {
		return nil, nil
	}
	topics := slices.Sorted(maps.Keys(r.Partitions))
	if r.Changelogs != nil {
		for _, topic := range slices.Clone(topics) {
			topics = append(topics, r.Changelogs(topic)...)
		}
	}
	stable, err := w.admin.adm.ListCommittedOffsets(ctx, topics...)
	ends, err2 := w.admin.adm.ListEndOffsets(ctx, topics...) // second: a transaction that is open now is below this end
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	committed, undecided, err := fetchOffsets(ctx, w.admin, r.Group, r.Partitions)
	if err != nil {
		return nil, err
	}
	var list []holdup
	for topic, numbers := range r.Partitions {
		for _, number := range numbers {
			id := cluster.Partition{Topic: topic, Number: number}
			h := holdup{groupPartition: groupPartition{r.Group, id}, offsets: undecided[id]}
			at := progress{committed: committed[id]}
			var end int64
			at.stable, end, h.input = openAt(stable, ends, id)
			if r.Changelogs != nil {
				for _, name := range r.Changelogs(topic) {
					read, _, open := openAt(stable, ends, cluster.Partition{Topic: name, Number: number})
					at.keys += read
					if open && !h.keys {
						h.changelog, h.keys = name, true
					}
				}
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
	}
	return list, nil
}

// openAt returns the last stable offset and the end of a partition, and whether a
// transaction is open between them.
func openAt(stable, ends kadm.ListedOffsets, id cluster.Partition) (lso, end int64, open bool) {
	s, ok := stable.Lookup(id.Topic, id.Number)
	e, ok2 := ends.Lookup(id.Topic, id.Number)
	known := ok && ok2 && s.Err == nil && e.Err == nil
	return s.Offset, e.Offset, known && s.Offset < e.Offset
}

// fetchOffsets returns the committed offsets of a group, and the partitions for which a
// transaction has written offsets and not ended. A member that is assigned such a
// partition waits for the end before it reads.
func fetchOffsets(ctx context.Context, a *Admin, group string, partitions map[string][]int32) (committed map[cluster.Partition]int64, undecided map[cluster.Partition]bool, err error) {
	committed, undecided = map[cluster.Partition]int64{}, map[cluster.Partition]bool{}
	for _, stable := range []bool{true, false} {
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group, req.RequireStable = group, stable
		for topic, numbers := range partitions {
			req.Topics = append(req.Topics, kmsg.OffsetFetchRequestTopic{Topic: topic, Partitions: numbers})
		}
		answer, err := req.RequestWith(ctx, a.client)
		if err != nil {
			return nil, nil, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
		}
		note := func(topic string, number int32, at int64, code int16) {
			id, err := cluster.Partition{Topic: topic, Number: number}, kerr.ErrorForCode(code)
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
			break // all offsets are known
		}
	}
	return committed, undecided, nil
}

// explain finds the transactions that hold partitions up. It returns an error for transactions
// that are open for too long, and otherwise an OpenError for the others.
func (w *StallWatch) explain(ctx context.Context, list []holdup, now time.Time) (stalled, failed error) {
	var in Places
	for _, h := range list {
		if h.input {
			in.Topics = append(in.Topics, h.Topic)
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
	var first, passing error
	count := 0
	for _, h := range list {
		why, ends, err := w.reason(ctx, &h, open, now)
		if err != nil {
			return nil, err
		}
		if ends != "" && passing == nil {
			passing = &OpenError{fmt.Sprintf("kafka: %s/%d has more records, and %s", h.Topic, h.Number, ends)}
		}
		if why == "" && ends == "" && now.Sub(h.since) >= max(w.patience, mostTransaction) {
			why = "a transaction that does not end is open, and the brokers do not show which: " + w.list(in)
		}
		if why == "" {
			continue
		}
		if count++; first == nil {
			first = fmt.Errorf("kafka: %s/%d has more records and has not been read for %v: %s", h.Topic, h.Number, now.Sub(h.since).Round(time.Second), why)
		}
	}
	if count > 1 {
		first = fmt.Errorf("%w; and %d more partitions: %s", first, count-1, w.list(in))
	}
	return cmp.Or(first, passing), nil
}

// isHidden reports whether an error says that the user may not see transactions, or
// that the brokers are too old to show them.
func isHidden(err error) bool {
	return errors.Is(err, ErrOffsetsHidden) || errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) || errors.Is(err, kerr.UnsupportedVersion)
}

// list returns the command that lists the open transactions in some places.
func (w *StallWatch) list(in Places) string {
	topics := slices.Clone(in.Topics)
	if len(in.Groups) > 0 {
		topics = append(topics, offsetsTopic)
	}
	return fmt.Sprintf("semel kafka txn ls --topic %s %s", strings.Join(topics, " --topic "), reachFlags(w.admin.client))
}

// reason says which open transaction holds a partition up for longer than it may, and
// what helps. It is "" if none exists. ends names one that will end, if there is one.
func (w *StallWatch) reason(ctx context.Context, h *holdup, open []OpenTransaction, now time.Time) (why, ends string, err error) {
	var offsets map[int32]struct{}
	if h.offsets {
		set, err := w.admin.offsetsOf(ctx, []string{h.group})
		if err != nil && !isHidden(err) {
			return "", "", err
		}
		offsets = set[offsetsTopic]
	}
	stood := now.Sub(h.since)
	for i := range open {
		o := &open[i]
		_, ofGroup := offsets[o.Partition]
		own := h.keys && o.Topic == h.changelog && o.Partition == h.Number || o.Topic == offsetsTopic && ofGroup
		if !own && !(h.input && o.Topic == h.Topic && o.Partition == h.Number) {
			continue
		}
		what := fmt.Sprintf("a transaction of producer %d is open in %s/%d since offset %d", o.ProducerID, o.Topic, o.Partition, o.Start)
		if o.Topic == offsetsTopic {
			what += ", where the offsets of group " + h.group + " are"
		}
		if o.Hanging && stood < w.patience {
			continue
		}
		if o.Hanging {
			// Coordinators may hide the transactions of other users.
			if o.ID == "" && !own && stood < mostTransaction {
				continue
			}
			return fmt.Sprintf("%s, and no coordinator will end it: %s", what, o.abortCommand(reachFlags(w.admin.client))), "", nil
		}
		described, err := w.admin.Transactions(ctx, o.ID)
		switch {
		case errors.Is(err, ErrNoTransaction):
		case err != nil:
			return "", "", err
		case stood < max(described[0].Timeout, w.patience):
			ends = fmt.Sprintf("%s as %s%s: semel kafka txn describe %s %s", what, o.ID, described[0].end(), o.ID, reachFlags(w.admin.client))
		default:
			return fmt.Sprintf("%s as %s, for longer than its time-out of %v: semel kafka txn describe %s %s", what, o.ID, described[0].Timeout, o.ID, reachFlags(w.admin.client)), "", nil
		}
	}
	return "", ends, nil
}

// end says when a transaction began, and when its coordinator ends it.
func (t *Transaction) end() string {
	if t.Started.IsZero() {
		return fmt.Sprintf(", and its coordinator aborts it after its time-out of %v", t.Timeout)
	}
	return fmt.Sprintf(": it began at %s, and its coordinator aborts it at about %s if its producer does not end it before",
		t.Started.UTC().Format(time.RFC3339), t.Started.Add(t.Timeout).UTC().Format(time.RFC3339))
}
