package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// States are in topics that anybody may delete, make again, empty or restore. Then duplicates
// pass, and results count too little. So each committed offset carries a note of
// the records that it needs (package marks). They are compared with the topics at the start,
// before a partition is restored, and every intactEvery. Two looks must agree.

// losses looks for what topics have lost.
type losses struct{ *Transactor }

// intactEvery is how often a Transactor looks for damage.
const intactEvery = 10 * time.Second

// keepMillis is how long a record of the changelog of keys counts, in milliseconds.
func (t losses) keepMillis() int64 { return t.windows.Retention().Milliseconds() }

// mark returns the note of a partition for the open transaction, whose records are written.
func (t losses) mark(p *part) marks.Note {
	at := p.slot
	n := at.note
	n.Read = t.topics[p.ID.Topic]
	for i, l := range at.logs {
		c, e := t.changelogs[p.ID.Topic][i], n.Of(i)
		e.Topic, e.Low, e.End = c.id, max(e.Low, l.Cut(), 0), max(e.End, l.Position())
		if e.Times = slices.Clone(e.Times); c.retention >= 0 {
			e.Low = -1 // brokers delete its records
		}
		if written := l.Written(); len(written) > 0 {
			e.Wrote(written[0].Offset, written[len(written)-1].Offset+1, t.now(), t.keepMillis())
		}
	}
	return n
}

// marked notes that the note of a partition is committed. The changelogs may be deleted up to
// where it says.
func (s *slot) marked(n marks.Note) {
	for i := range s.deletable {
		if low := n.Of(i).Low; low > s.note.Of(i).Low {
			s.deletable[i].Store(low)
		}
	}
	s.note = n
}

// withMark returns the metadata that is committed with an offset: the offsets of records that
// wait, and the note.
func withMark(waiting string, n *marks.Note) string {
	if waiting == "" {
		return n.String()
	}
	return waiting + pending.End + n.String()
}

// presence is what brokers have of the topics of a Transactor.
type presence struct {
	topics      kadm.TopicDetails
	first, last kadm.ListedOffsets
}

// watched returns the topics that are decided and their changelogs.
func (t losses) watched() []string {
	return append(t.changelogs.names(t.decided...), t.decided...)
}

// present returns what brokers have of these topics.
func (t losses) present(ctx context.Context, adm *kadm.Client) (p presence, err error) {
	names := t.watched()
	if p.topics, err = adm.ListTopics(ctx, names...); err != nil {
		return p, fmt.Errorf("kafka: list topics: %w", err)
	}
	p.first, err = adm.ListStartOffsets(ctx, names...)
	var err2 error
	p.last, err2 = adm.ListEndOffsets(ctx, names...)
	if err := errors.Join(err, err2); err != nil {
		return p, fmt.Errorf("kafka: offsets of %v: %w", names, err)
	}
	return p, nil
}

// of returns what brokers have of a partition, or false if that is unknown.
func (p *presence) of(topic string, number int32) (marks.Present, bool) {
	start, ok := p.first.Lookup(topic, number)
	end, ok2 := p.last.Lookup(topic, number)
	return marks.Present{Topic: marks.ID(p.topics[topic].ID), Start: start.Offset, End: end.Offset}, ok && ok2 && start.Err == nil && end.Err == nil && p.topics[topic].Err == nil
}

// damaged returns an error if the topics lack what the note of a committed offset says. at
// is the offset.
func (t losses) damaged(id cluster.Partition, at kadm.OffsetResponse, has *presence) (*marks.Note, error) {
	n, err := marks.Parse(at.Metadata)
	if err != nil {
		return nil, cluster.Damaged("kafka: group %s: the metadata %q of its offset of %s/%d is not what Semel writes: %w", t.chain.Group, at.Metadata, id.Topic, id.Number, err)
	}
	if at.Err != nil || at.At < 0 || n == nil {
		return nil, nil
	}
	input, known := has.of(id.Topic, id.Number)
	if known && n.Read != input.Topic && n.Read != (marks.ID{}) && input.Topic != (marks.ID{}) {
		return n, t.source.madeAgain(id.Topic)
	}
	if known {
		if err := t.source.lacks(id, at.At, input); err != nil {
			return n, err
		}
	}
	for i, c := range t.changelogs[id.Topic] {
		now, known := has.of(c.name, id.Number)
		if !known {
			continue
		}
		if lacks := n.Of(i).Lacks(now, t.now(), t.keepMillis()); lacks != "" {
			return n, cluster.Damaged("kafka: %s %s/%d %s: %s. Restore it, or use %s. To go on without what is lost, %s",
				c.what, c.name, id.Number, lacks, c.lost, c.other, t.acceptLoss(id.Topic))
		}
	}
	return n, nil
}

// acceptLoss returns how an operator lets a pipeline continue without the state of a topic.
func (t losses) acceptLoss(topic string) string {
	return fmt.Sprintf("stop all instances, wait until the group is empty, and remove the notes from its offsets: kafka-consumer-groups.sh --bootstrap-server ADDRESS --group %s --topic %s --reset-offsets --to-current --execute", t.chain.Group, topic)
}

// agreed repeats a look that finds damage after intactEvery, and returns the result of the
// second one. One broker that lags behind the others may know only a topic that was replaced.
func agreed(ctx context.Context, look func() error) error {
	err := look()
	if !errors.Is(err, semel.ErrCorrupt) {
		return err
	}
	if retry.Sleep(ctx, intactEvery) != nil {
		return context.Cause(ctx)
	}
	return look()
}

// intact returns an error if a topic lacks state that committed offsets need.
func (t losses) intact(ctx context.Context, adm *kadm.Client) error {
	has, err := t.present(ctx, adm)
	if err != nil {
		return err
	}
	// The offsets are asked for later than the topics: a topic is cut off only after a note
	// that allows it.
	committed, err := pending.Offsets(ctx, adm, t.chain.Group, t.decided)
	if err != nil {
		return err
	}
	if err := t.source.intact(ctx, adm, &has); err != nil {
		return err
	}
	found := t.firstDamage(committed, &has)
	if found == nil {
		return nil
	}
	// A member may have cut a topic off, with a note that is not visible yet. Or it has written
	// to a topic since, so the ends are asked for again, later than the notes.
	if committed, err = pending.Stable(ctx, adm, t.chain.Group, t.decided, func() {}); err != nil {
		return err
	}
	if has.last, err = adm.ListEndOffsets(ctx, t.watched()...); err != nil {
		return fmt.Errorf("kafka: offsets of %v: %w", t.watched(), err)
	}
	return t.firstDamage(committed, &has)
}

func (t losses) firstDamage(committed kadm.OffsetResponses, has *presence) error {
	for _, topic := range t.decided {
		for number := range t.sizes[topic] {
			at, ok := committed.Lookup(topic, number)
			if !ok {
				continue
			}
			if _, err := t.damaged(cluster.Partition{Topic: topic, Number: number}, at, has); err != nil {
				return err
			}
		}
	}
	return nil
}

// intactParts refuses parts whose state is damaged, before anything is written to it, and
// notes what the others have. No transaction can change their offsets any longer.
func (t losses) intactParts(ctx context.Context, s *session, parts []*part) error {
	adm := t.adm()
	committed, err := pending.Stable(ctx, adm, t.chain.Group, t.decided, func() { s.restores.Store(new("")) })
	if err != nil {
		return err
	}
	return agreed(ctx, func() error { return t.noteParts(ctx, adm, committed, parts) })
}

// noteParts compares the notes of parts with what brokers have, and keeps them.
func (t losses) noteParts(ctx context.Context, adm *kadm.Client, committed kadm.OffsetResponses, parts []*part) error {
	has, err := t.present(ctx, adm)
	if err != nil {
		return err
	}
	for _, p := range parts {
		at, _ := committed.Lookup(p.ID.Topic, p.ID.Number)
		n, err := t.damaged(p.ID, at, &has)
		if err != nil {
			return err
		}
		if n == nil {
			n = &marks.Note{}
		}
		for i, c := range t.changelogs[p.ID.Topic] {
			now, _ := has.of(c.name, p.ID.Number)
			n.Of(i).Low = max(n.Of(i).Low, now.Start)
		}
		p.slot.note = *n
	}
	return nil
}

// permitted notes for Ready which right on a topic with state is missing. A right to read is
// used only when partitions move, which may be much later. Brokers before 2.3 do not tell.
func (t losses) permitted(ctx context.Context) {
	names := slices.Sorted(slices.Values(t.changelogs.names(t.decided...)))
	topics, err := t.adm().ListTopics(kadm.WithAuthorizedOps(ctx), names...)
	if err != nil {
		return // no answer is not a refusal
	}
	var lacks error
	for _, name := range names {
		if lacks = lackedRight(name, topics[name]); lacks != nil {
			break
		}
	}
	if before := t.lacks.Swap(&lacks); lacks != nil && (before == nil || *before == nil) {
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "a right is missing", Err: lacks})
	}
}

// lackedRight returns an error if the user may not read or write a topic with state.
func lackedRight(name string, topic kadm.TopicDetail) error {
	if errors.Is(topic.Err, kerr.TopicAuthorizationFailed) {
		return fmt.Errorf("kafka: topic %s: %w", name, topic.Err)
	}
	may := topic.AuthorizedOperations
	if topic.Err != nil || len(may) == 0 || slices.Contains(may, kadm.OpAll) {
		return nil
	}
	for _, op := range []kadm.ACLOperation{kadm.OpRead, kadm.OpWrite} {
		if !slices.Contains(may, op) {
			return fmt.Errorf("kafka: topic %s: no right to %s: %w", name, op, kerr.TopicAuthorizationFailed)
		}
	}
	return nil
}

// watchIntact looks for damage until ctx ends, and returns it. It also notices topics that
// were deleted or made again, and missing rights.
func (t losses) watchIntact(ctx context.Context) error {
	missing := map[string]bool{}
	for retry.Sleep(ctx, intactEvery) == nil {
		err := agreed(ctx, func() error {
			patient, cancel := context.WithTimeout(ctx, intactEvery)
			defer cancel()
			defer t.permitted(patient)
			if err := t.sameTopics(patient, missing); err != nil {
				return err
			}
			return t.intact(patient, t.adm())
		})
		if cluster.IsFinal(err) {
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "a topic has lost what the pipeline needs", Err: err})
			return err
		}
	}
	return nil
}

// sameTopics returns an error if a topic is another one than at the start, or was deleted.
// missing has the topics that were missing at the last look.
func (t losses) sameTopics(ctx context.Context, missing map[string]bool) error {
	was, holds := map[string]state.ID{}, map[string]bool{}
	for _, topic := range t.decided {
		was[topic], holds[topic] = t.topics[topic], true
		for _, c := range t.changelogs[topic] {
			was[c.name], holds[c.name] = c.id, true
		}
	}
	for _, topic := range t.inputs {
		was[topic], holds[topic] = t.topics[topic], false
	}
	for name, id := range was {
		found, err := t.adm().ListTopics(ctx, name)
		if err != nil {
			return err
		}
		topic := found[name]
		gone := errors.Is(topic.Err, kerr.UnknownTopicOrPartition)
		switch {
		case gone && missing[name] && holds[name]: // a broker that has just started knows no topics
			return cluster.Damaged("kafka: topic %s, which holds what the pipeline remembers, was deleted: stop the pipeline, and start it again to see what can be done", name)
		case topic.Err == nil && state.ID(topic.ID) != id && topic.ID != (kadm.TopicID{}) && id != (state.ID{}):
			return cluster.Damaged("kafka: topic %s was deleted and made again while the pipeline used it: start the pipeline again to see what can be done", name)
		}
		missing[name] = gone
	}
	return nil
}
