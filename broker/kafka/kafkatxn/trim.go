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
	t.repeat(ctx, trimEvery, "a changelog cannot be cut off, and grows", func() error {
		offsets := kadm.Offsets{}
		t.slots.each(func(id cluster.Partition, at *slot) {
			for i, c := range t.changelogs[id.Topic] {
				if cut := at.deletable[i].Swap(0); cut > 0 {
					offsets.AddOffset(c.name, id.Number, cut, -1)
				}
			}
		})
		return t.cutOff(ctx, offsets)
	})
}

// repeat deletes records again and again until ctx ends. It reports an error once, with its effect.
func (t trimmer) repeat(ctx context.Context, every time.Duration, effect string, remove func() error) {
	reported := ""
	for retry.Sleep(ctx, every) == nil {
		if err := remove(); err != nil && ctx.Err() == nil && err.Error() != reported {
			reported = err.Error()
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: effect, Err: err})
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
