package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// DefaultEvery is the default of [MaintainOptions].
const DefaultEvery = 5 * time.Minute

// MaintainOptions are the options of [Store.Maintain]. The zero value is valid.
type MaintainOptions struct {
	// Every is how long after the beginning of one clean-up the next begins.
	// Defaults to 5 min. Must be at least 1 s.
	Every time.Duration
	// Rate is the most rows a second that are deleted. Defaults to 0: no limit
	// but that a clean-up works a fifth of the time. Must not be negative.
	Rate int
	// Hours limits clean-up to some hours of the day. Defaults to all day.
	Hours Hours
	// OnPass is told of each clean-up of this process: how many rows are gone,
	// and why it ended early. It is called by Maintain. Defaults to none.
	OnPass func(gone int64, err error)
}

// Hours is a part of the day, in UTC by the server's clock: from the hour From
// to the hour To, over midnight if To is less. The zero value is all day.
type Hours struct{ From, To int }

// contain reports whether a time is in the hours.
func (h Hours) contain(t time.Time) bool {
	switch hour := t.UTC().Hour(); {
	case h.From == h.To:
		return true
	case h.From < h.To:
		return hour >= h.From && hour < h.To
	default:
		return hour >= h.From || hour < h.To
	}
}

func (o *MaintainOptions) checked() (MaintainOptions, error) {
	var c MaintainOptions
	if o != nil {
		c = *o
	}
	if c.Every == 0 {
		c.Every = DefaultEvery
	}
	if c.OnPass == nil {
		c.OnPass = func(int64, error) {}
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("pgstore: MaintainOptions."+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if c.Every < time.Second {
		bad("Every: %v is less than 1s", c.Every)
	}
	if c.Rate < 0 {
		bad("Rate: %d is negative", c.Rate)
	}
	if h := c.Hours; h.From < 0 || h.From > 23 || h.To < 0 || h.To > 24 {
		bad("Hours: %d to %d are not hours of a day", h.From, h.To)
	}
	return c, errors.Join(errs...)
}

// rest is how many times as long as a clean-up works it rests: that leaves the
// server to the claims.
const rest = 4

// errNotNow ends a clean-up whose hours are over.
var errNotNow = errors.New("not in these hours")

// Maintain cleans up until ctx ends, and then returns the reason. It blocks:
// the caller gives it a goroutine and waits for that. Of all processes that
// maintain one table, one at a time works; when it is gone, another does.
// An error of one clean-up, which OnPass is told, does not end it.
func (s *Store) Maintain(ctx context.Context, opts *MaintainOptions) error {
	o, err := opts.checked()
	if err != nil {
		return err
	}
	for {
		gone, worked, err := s.pass(ctx, &o)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, semel.ErrClosed) {
			return err
		}
		if worked || err != nil {
			o.OnPass(gone, err)
		}
		if err := sleep(ctx, o.Every); err != nil {
			return err
		}
	}
}

// turnSQL takes the turn to clean up for $2 microseconds, if nobody has it.
const turnSQL = clock + `
UPDATE {meta} SET at = clock.now + $2::bigint * interval '1 microsecond' FROM clock
WHERE name = 'cleaning' AND (at <= clock.now OR $3::boolean) RETURNING clock.now`

// cleanedSQL notes that a clean-up went over the whole table.
const cleanedSQL = clock + `
UPDATE {meta} SET at = clock.now FROM clock WHERE name = 'cleaned' RETURNING at`

// pass cleans up once, if it is our turn and the hour is right.
func (s *Store) pass(ctx context.Context, o *MaintainOptions) (gone int64, worked bool, err error) {
	now, mine, err := s.turn(ctx, o.Every, false)
	if err != nil || !mine || !o.Hours.contain(now) {
		return 0, false, err
	}
	began := time.Now()
	renewed, rested := began, began
	gone, err = s.purge(ctx, func(ctx context.Context, rows int64) error {
		idle := rest * time.Since(rested)
		if o.Rate > 0 {
			idle = max(idle, time.Duration(float64(rows)/float64(o.Rate)*float64(time.Second)))
		}
		if err := sleep(ctx, idle); err != nil {
			return err
		}
		rested = time.Now()
		if !o.Hours.contain(now.Add(rested.Sub(began))) {
			return errNotNow
		}
		if rested.Sub(renewed) < o.Every/2 {
			return nil
		}
		renewed = rested
		_, _, err := s.turn(ctx, o.Every, true)
		return err
	})
	if errors.Is(err, errNotNow) {
		return gone, true, nil
	}
	if err == nil {
		_, err = s.stamp(ctx, s.sql.cleaned)
	}
	return gone, true, err
}

// turn takes or renews the turn to clean up, and returns the server's time.
func (s *Store) turn(ctx context.Context, span time.Duration, renew bool) (now time.Time, mine bool, err error) {
	times, err := s.stamp(ctx, s.sql.turn, microseconds(span), renew)
	if err != nil || len(times) == 0 {
		return time.Time{}, false, err
	}
	return times[0], true, nil
}

func (s *Store) stamp(ctx context.Context, sql string, args ...any) ([]time.Time, error) {
	if err := s.enter("maintain", 0, 0); err != nil {
		return nil, err
	}
	defer s.leave()
	times, err := collect(ctx, s.onPool(), sql, args, pgx.RowTo[time.Time])
	if err != nil {
		return nil, fmt.Errorf("pgstore: maintain: %w", err)
	}
	return times, nil
}
