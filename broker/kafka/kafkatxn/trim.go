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
	"github.com/semel-dev/semel/pipeline"
)

// cuts are the positions up to which a partition's changelog can be deleted, because
// the window of each earlier key has ended. By event time the brokers cannot know them:
// the age of a changelog record does not show the times of its entries.
//
// A record carries the stream time of its transaction. None of its entries is newer,
// and no earlier record has a greater stream time. So when the stream time has advanced
// by more than the retention, no entry up to there counts, even for the oldest record
// that is not late. The last record is never before a cut: its stream time is the
// present, which a restore takes from it.
//
// The zero cuts has no position.
type cuts struct {
	keep  int64 // longest time in milliseconds that an entry counts
	span  int64 // stream time between two cuts
	marks []cutMark
}

// cutMark is a position. No earlier record has a stream time above newest.
type cutMark struct {
	position      int64
	begun, newest int64
}

// cutsOf is the number of cuts in a retention.
const cutsOf = 16

func newCuts(w *windowing) cuts {
	if !w.eventTime || w.retention() >= semel.Forever-w.scale.Length()-time.Millisecond {
		return cuts{}
	}
	// An entry expires at the end of the tick of its expiry.
	keep := (w.retention() + w.scale.Length() + time.Millisecond - 1).Milliseconds()
	return cuts{keep: keep, span: max(keep/cutsOf, 1)}
}

// note adds a position. The records before it are applied, and newest is their greatest
// stream time.
func (c *cuts) note(position, newest int64) {
	if c.keep == 0 {
		return
	}
	if n := len(c.marks); n > 0 && newest-c.marks[n-1].begun < c.span {
		c.marks[n-1].position, c.marks[n-1].newest = position, newest
		return
	}
	// Of several expired marks, the last is enough.
	if old := c.behind(newest); old > 1 {
		c.marks = slices.Delete(c.marks, 0, old-1)
	}
	c.marks = append(c.marks, cutMark{position, newest, newest})
}

// behind counts the marks that have expired at a stream time.
func (c *cuts) behind(streamTime int64) (n int) {
	for n < len(c.marks) && c.marks[n].newest <= streamTime-c.keep {
		n++
	}
	return n
}

// take returns the position up to which the changelog can be deleted at a stream time,
// if it is above the previous one.
func (c *cuts) take(streamTime int64) (position int64, ok bool) {
	n := c.behind(streamTime)
	if n == 0 {
		return 0, false
	}
	position = c.marks[n-1].position
	c.marks = slices.Delete(c.marks, 0, n)
	return position, true
}

// trimEvery is how often changelogs are trimmed, with one request to each broker.
const trimEvery = 10 * time.Second

// trim deletes changelog records that sessions no longer need, until ctx ends. A
// deletion that failed is repeated with the next one.
func (t *Transactor) trim(ctx context.Context) {
	reported := ""
	for cluster.Pause(ctx, trimEvery) {
		offsets := kadm.Offsets{}
		t.mu.Lock()
		for id, at := range t.slots {
			if cut := at.cut.Swap(0); cut > 0 {
				offsets.AddOffset(t.opts.changelogOf(id.Topic), id.Number, cut, -1)
			}
			if cut := at.windowsCut.Swap(0); cut > 0 {
				offsets.AddOffset(t.opts.windowsOf(id.Topic), id.Number, cut, -1)
			}
		}
		t.mu.Unlock()
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

func (t *Transactor) cutOff(ctx context.Context, offsets kadm.Offsets) error {
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
