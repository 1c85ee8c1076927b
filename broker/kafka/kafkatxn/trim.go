package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// trimmer deletes records that are no longer needed.
type trimmer struct{ *Transactor }

// trimEvery is how often changelogs are trimmed, with one request to each broker.
const trimEvery = 10 * time.Second

// trim deletes changelog records that sessions no longer need, until ctx ends. A
// deletion that failed is repeated with the next one.
func (t trimmer) trim(ctx context.Context) {
	reported := ""
	for retry.Sleep(ctx, trimEvery) == nil {
		offsets := kadm.Offsets{}
		t.slots.each(func(id cluster.Partition, at *slot) {
			for i, name := range t.opts.changelogsOf(id.Topic) {
				if cut := at.deletable[i].Swap(0); cut > 0 {
					offsets.AddOffset(name, id.Number, cut, -1)
				}
			}
		})
		err := t.cutOff(ctx, offsets)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if text := err.Error(); text != reported {
			reported = text
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "a changelog cannot be cut off, and grows", Err: err})
		}
	}
}

func (t trimmer) cutOff(ctx context.Context, offsets kadm.Offsets) error {
	if len(offsets) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, trimEvery)
	defer cancel()
	answers, err := t.adm().DeleteRecords(ctx, offsets)
	if err != nil {
		return fmt.Errorf("kafka: delete records: %w", err)
	}
	var errs []error
	answers.Each(func(r kadm.DeleteRecordsResponse) {
		switch {
		case r.Err == nil, errors.Is(r.Err, kerr.OffsetOutOfRange): // another process was faster
		case errors.Is(r.Err, kerr.TopicAuthorizationFailed):
			errs = append(errs, fmt.Errorf("kafka: delete records of %s/%d: %w: allow Delete on the topic", r.Topic, r.Partition, r.Err))
		default:
			errs = append(errs, fmt.Errorf("kafka: delete records of %s/%d: %w", r.Topic, r.Partition, r.Err))
		}
	})
	return errors.Join(errs...)
}

// purgeEvery is how often committed records are deleted from the topic between the
// stages.
const purgeEvery = 30 * time.Second

// purge deletes committed records from the topic between the stages, until ctx ends.
// Every process does it; a repeated deletion costs nothing.
func (t trimmer) purge(ctx context.Context) {
	done := map[int32]int64{}
	refused := ""
	for retry.Sleep(ctx, purgeEvery) == nil {
		err := t.purgeOnce(ctx, done)
		if err == nil || ctx.Err() != nil || transient(err) {
			continue
		}
		if err.Error() != refused { // report each error once
			refused = err.Error()
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "what was read of " + t.opts.Repartition.Topic + " stays until its retention ends", Err: err})
		}
	}
}

func (t trimmer) purgeOnce(ctx context.Context, done map[int32]int64) error {
	adm, topic := t.adm(), t.opts.Repartition.Topic
	committed, err := adm.FetchOffsets(ctx, t.opts.Group)
	if err != nil {
		return fmt.Errorf("kafka: offsets of group %s: %w", t.opts.Group, err)
	}
	upTo := kadm.Offsets{}
	for number, o := range committed[topic] {
		if o.Err == nil && o.At > done[number] {
			upTo.AddOffset(topic, number, o.At, -1)
		}
	}
	deleted, err := adm.DeleteRecords(ctx, upTo)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("kafka: delete from %s: %w", topic, err)
	}
	upTo.Each(func(o kadm.Offset) { done[o.Partition] = o.At })
	return nil
}
