package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// cuts says where a partition's changelog can be cut off, because no key before
// has a window that is open. By event time the brokers cannot know that: how old
// a record of the changelog is says nothing about the times that were in it.
//
// A record carries the stream time of its transaction. None of its entries is
// newer, and no record before it has a greater one. So when the stream time is
// further than the retention, all up to there counts for nothing, not even for
// the oldest record that is not late. The last record is never before a cut: its
// stream time is the present one, and who restores the state has that from it.
//
// The zero cuts has none.
type cuts struct {
	keep  int64 // milliseconds for which an entry answers, at most
	span  int64 // of the stream time that one cut stands for
	marks []cutMark
}

// cutMark is a position before which no record has a stream time above newest.
type cutMark struct {
	position      int64
	begun, newest int64
}

// cutsOf is in how many parts a retention is cut off.
const cutsOf = 16

func newCuts(w *windowing) cuts {
	if !w.eventTime || w.retention() >= semel.Forever-w.scale.Length()-time.Millisecond {
		return cuts{}
	}
	// An entry ends with the tick in which its time is over.
	keep := (w.retention() + w.scale.Length() + time.Millisecond - 1).Milliseconds()
	return cuts{keep: keep, span: max(keep/cutsOf, 1)}
}

// note remembers that the records before a position are applied, and have a stream
// time of at most newest, the greatest that there was.
func (c *cuts) note(position, newest int64) {
	if c.keep == 0 {
		return
	}
	if n := len(c.marks); n > 0 && newest-c.marks[n-1].begun < c.span {
		c.marks[n-1].position, c.marks[n-1].newest = position, newest
		return
	}
	// Of marks that are all behind the horizon the last is enough.
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

// take returns up to which position the changelog can be cut off at a stream
// time, if it is further than what was taken before.
func (c *cuts) take(streamTime int64) (position int64, ok bool) {
	n := c.behind(streamTime)
	if n == 0 {
		return 0, false
	}
	position = c.marks[n-1].position
	c.marks = slices.Delete(c.marks, 0, n)
	return position, true
}

// trimEvery is how often changelogs are cut off, with one request to each broker.
const trimEvery = 10 * time.Second

// trim cuts changelogs off where sessions found that they can be, until ctx ends.
// A cut that failed is made with the next one.
func (t *Transactor) trim(ctx context.Context) {
	reported := ""
	for pause(ctx, trimEvery) {
		offsets := kadm.Offsets{}
		t.mu.Lock()
		for id, at := range t.slots {
			if cut := at.cut.Swap(0); cut > 0 {
				offsets.AddOffset(t.opts.changelogOf(id.topic), id.number, cut, -1)
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
		return fmt.Errorf("kafkaio: delete records: %w", err)
	}
	var errs []error
	answers.Each(func(r kadm.DeleteRecordsResponse) {
		switch {
		case r.Err == nil, errors.Is(r.Err, kerr.OffsetOutOfRange): // somebody was faster
		case errors.Is(r.Err, kerr.TopicAuthorizationFailed):
			errs = append(errs, fmt.Errorf("kafkaio: delete records of %s/%d: %w: allow Delete on the topic", r.Topic, r.Partition, r.Err))
		default:
			errs = append(errs, fmt.Errorf("kafkaio: delete records of %s/%d: %w", r.Topic, r.Partition, r.Err))
		}
	})
	return errors.Join(errs...)
}
