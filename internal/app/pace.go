package app

import (
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/pipeline"
)

// rateOver is the number of samples, one a second, over which a rate is computed.
const rateOver = 10

// ratesKept is how many rates the last hour has.
const ratesKept = 3600 / rateOver

// sample is what a pipeline had done at a time.
type sample struct {
	at      time.Time
	settled int64
	// parked are of the settled ones.
	parked int64
	// batches are those with a message that was delivered or failed, and messages are those
	// messages. took is how long the batches took together.
	batches, messages int64
	took              time.Duration
	// claims and effects are keys, and claiming and working how long the claims of their
	// batches and their effects took.
	claims, effects   int64
	claiming, working time.Duration
}

// guarded adds an event of a guard.
func (s *sample) guarded(e semel.Event) {
	n := int64(max(e.Count, 1))
	switch e.Kind {
	case semel.EventDecided:
		s.claims += n
		s.claiming += time.Duration(n) * e.Elapsed
	case semel.EventCompleted:
		s.effects += n
		s.working += time.Duration(n) * e.Elapsed
	}
}

// delivered adds an event of messages that were delivered or failed.
func (s *sample) delivered(e pipeline.Event) {
	s.batches++
	s.messages += int64(e.Count)
	s.took += e.Elapsed
}

// since returns the work that was done since an earlier sample.
func (s *sample) since(first *sample) sample {
	return sample{
		s.at, s.settled - first.settled, s.parked - first.parked,
		s.batches - first.batches, s.messages - first.messages, s.took - first.took,
		s.claims - first.claims, s.effects - first.effects, s.claiming - first.claiming, s.working - first.working,
	}
}

// mostIdle is the share of their time that workers may wait, while they are what limits the
// rate.
const mostIdle = 0.4

// storeShare is the share of the time of a batch that its claim takes at least if the store is
// what limits the rate: the completion takes about as long.
const storeShare = 1.0 / 3

// behindFrom is how long a lag takes from which on a pipeline is behind.
const behindFrom = 10 * time.Second

// pace says how long the lag takes, and what limits the rate, or returns nil if the pipeline is
// not behind. read is how many bytes it has read, and done is what it did in some time
// with a number of workers. ahead: messages are read ahead.
func pace(p *admin.PipelineStatus, read int64, done *sample, in time.Duration, workers int, ahead bool) *admin.Pace {
	behind := 0.0 // in messages
	switch {
	case p.Lag != nil:
		behind = float64(*p.Lag)
	case p.LagBytes != nil && p.Read > 0:
		behind = float64(*p.LagBytes) / max(float64(read)/float64(p.Read), 1)
	}
	left := takes(behind, done.settled, in)
	if left < behindFrom {
		return nil
	}
	now := work(done, in, workers, ahead)
	if left < semel.Forever {
		seconds := left.Seconds()
		now.LeftSeconds = &seconds
	}
	return now
}

// work says how long batches take and what limits the rate.
func work(done *sample, in time.Duration, workers int, ahead bool) *admin.Pace {
	now := &admin.Pace{Workers: workers}
	if done.batches == 0 {
		return now
	}
	each := func(sum time.Duration, n int64) *float64 {
		if n == 0 {
			return nil
		}
		mean := sum.Seconds() / float64(n)
		return &mean
	}
	now.Messages = float64(done.messages) / float64(done.batches)
	now.BatchSeconds, now.ClaimSeconds, now.SinkSeconds = each(done.took, done.batches), each(done.claiming, done.claims), each(done.working, done.effects)
	switch {
	case done.took.Seconds() >= (1-mostIdle)*in.Seconds()*float64(workers):
	case !ahead:
		now.Limit = admin.LimitSource
		return now
	case 2*done.parked > done.settled:
		now.Limit = admin.LimitParking
		return now
	default: // messages of a group, for instance, wait for each other
		return now
	}
	switch {
	case now.ClaimSeconds != nil && now.SinkSeconds != nil && *now.ClaimSeconds > *now.SinkSeconds && *now.ClaimSeconds > storeShare**now.BatchSeconds:
		now.Limit = admin.LimitStore
	case now.SinkSeconds != nil:
		now.Limit = admin.LimitSink
	default:
		now.Limit = admin.LimitWorkers
	}
	return now
}

// takes returns how long an amount takes if another one was done in some time.
func takes(amount float64, done int64, in time.Duration) time.Duration {
	switch {
	case amount <= 0:
		return 0
	case done <= 0:
		return semel.Forever
	}
	seconds := amount / float64(done) * in.Seconds()
	return time.Duration(min(seconds*float64(time.Second), float64(semel.Forever)))
}
