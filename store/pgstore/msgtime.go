package pgstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// Message time: a key goes to a partition by the time inside its id, which is
// the same at every delivery. So all deliveries of a key meet in one partition,
// whose unique index decides between them, and when its time is long over, and
// the windows of its keys, it is truncated.
//
// Time is cut into slots of one width. The partitions are a ring: the first
// byte of a key says which it is in, the number of its slot modulo the number
// of partitions. It takes the place of the first byte of the digest, of which
// 120 bits are left. The ring is longer than the age of the oldest message that
// is answered for, so that there is always one to be emptied. Where the windows
// of its keys last longer, a partition is used again as it is, and cleaned row
// by row: keys of two slots in one partition do not disturb each other.
//
// A message that is older than the tables are made for, and of which no record
// is left, is late and never new: whether its record was truncated is not
// known. The floor, which the database keeps, is the time of messages before
// which this holds for good, even if the server's clock steps back.

// messageAhead is by how much the time of a message may be ahead of the
// server's clock.
const messageAhead = time.Hour

// spareSlots is the number of partitions beyond those that hold the age of the
// oldest message: the slots that have begun or end at either end of it, and one
// to be emptied meanwhile.
const spareSlots = 4

// IDTime returns the time inside an id that is a UUID of version 7, with or
// without hyphens, or a ULID. It is the default of [Options].MessageTime.
func IDTime(key semel.Key) (time.Time, bool) {
	switch id := key.ID; len(id) {
	case 36:
		if id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
			return time.Time{}, false
		}
		return uuidTime(strings.ReplaceAll(id, "-", ""))
	case 32:
		return uuidTime(id)
	case 26:
		return ulidTime(id)
	}
	return time.Time{}, false
}

func uuidTime(digits string) (time.Time, bool) {
	u, err := hex.DecodeString(digits)
	if err != nil || len(u) != 16 || u[6]>>4 != 7 || u[8]>>6 != 2 {
		return time.Time{}, false
	}
	var milliseconds int64
	for _, b := range u[:6] {
		milliseconds = milliseconds<<8 | int64(b)
	}
	return time.UnixMilli(milliseconds), true
}

// crockford are the digits of a ULID.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

func ulidTime(id string) (time.Time, bool) {
	var milliseconds int64
	for i, c := range strings.ToUpper(id) {
		digit := strings.IndexRune(crockford, c)
		switch {
		case digit < 0, i == 0 && digit > 7:
			return time.Time{}, false
		case i < 10:
			milliseconds = milliseconds<<5 | int64(digit)
		}
	}
	return time.UnixMilli(milliseconds), true
}

// messageTime is what a store knows of the times of messages.
type messageTime struct {
	of    func(semel.Key) (time.Time, bool)
	age   time.Duration // of the oldest message that is answered for
	slots int
}

// width is how long a slot is.
func (m *messageTime) width() time.Duration {
	return (m.age / time.Duration(m.slots-spareSlots)).Truncate(time.Microsecond)
}

// slot is the partition of messages of a time.
func (m *messageTime) slot(at time.Time) int {
	width := m.width().Microseconds()
	n := at.UnixMicro() / width
	if at.UnixMicro()%width < 0 {
		n--
	}
	slots := int64(m.slots)
	return int((n%slots + slots) % slots)
}

// hasher makes digests of keys, as the table has them.
type hasher struct {
	digest.Hasher
	times *messageTime // nil unless keys are kept by the time of messages
}

// Key returns the digest of a key that check lets pass.
func (h hasher) Key(key semel.Key) semel.Digest { return h.placed(h.Hasher.Key(key), key) }

// placed puts a digest where its message time belongs.
func (h hasher) placed(d semel.Digest, key semel.Key) semel.Digest {
	if h.times != nil {
		at, _ := h.times.of(key)
		d[0] = byte(h.times.slot(at))
	}
	return d
}

// check returns an error if the time of a message cannot be told.
func (h hasher) check(key semel.Key) error {
	if h.times == nil {
		return nil
	}
	if _, ok := h.times.of(key); !ok {
		return fmt.Errorf("pgstore: no time in the id of %s; clean-up by %s needs a UUID of version 7, a ULID, or Options.MessageTime: %w", key, CleanupMessageTime, semel.ErrInvalidKey)
	}
	return nil
}

// memo makes digests of keys that often have the scope of the one before.
func (h hasher) memo() *memo { return &memo{h, digest.Memo{Hasher: h.Hasher}} }

type memo struct {
	hasher
	digests digest.Memo
}

func (m *memo) Key(key semel.Key) semel.Digest { return m.placed(m.digests.Key(key), key) }

// deadline is the server's time from which on a message without record is
// late; null if it never is.
func (h hasher) deadline(req *semel.ClaimRequest) pgtype.Timestamptz {
	d := deadline(req)
	if h.times == nil {
		return d
	}
	at, _ := h.times.of(req.Key)
	oldest := at.Add(h.times.age)
	if d.Valid && (d.InfinityModifier == pgtype.NegativeInfinity || d.Time.Before(oldest)) {
		return d
	}
	return timestamp(oldest)
}

// outside answers a request whose message time the store does not take, if the
// key has no record.
func (h hasher) outside(r *row, req *semel.ClaimRequest, a *semel.ClaimAnswer, now time.Time) bool {
	if h.times == nil || r.state(now) != semel.Absent {
		return false
	}
	at, _ := h.times.of(req.Key)
	switch d := h.deadline(req); {
	case at.After(now.Add(messageAhead)):
		a.Err = fmt.Errorf("pgstore: the id of %s has the time %s, %v ahead of the server's: %w",
			req.Key, at.UTC().Format(time.RFC3339), at.Sub(now).Round(time.Second), semel.ErrInvalidRequest)
	case d.InfinityModifier == pgtype.NegativeInfinity || d.Time.Before(now):
		a.Decision = semel.Late
	default:
		return false
	}
	return true
}

// Defaults and bounds of tables that keep keys by the time of messages.
const (
	// DefaultMessageAge is the default of [MigrateOptions].
	DefaultMessageAge = 7 * 24 * time.Hour
	defaultSlots      = 32
	leastSlots        = 2 * spareSlots
	mostSlots         = 256
)

// checkMessageTime sets defaults, and returns what is wrong for clean-up by
// message time.
func (o *MigrateOptions) checkMessageTime() (errs []error) {
	if o.Partitions == 0 {
		o.Partitions = defaultSlots
	}
	if o.MessageAge == 0 {
		o.MessageAge = DefaultMessageAge
	}
	if o.Partitions < leastSlots || o.Partitions > mostSlots {
		errs = append(errs, fmt.Errorf("pgstore: MigrateOptions.Partitions: %d is not between %d and %d: %w", o.Partitions, leastSlots, mostSlots, semel.ErrInvalidRequest))
	}
	// A slot is then longer than a message may be ahead of the clock.
	if o.MessageAge < time.Duration(o.Partitions)*messageAhead {
		errs = append(errs, fmt.Errorf("pgstore: MigrateOptions.MessageAge: %v is less than an hour for each of %d partitions: %w", o.MessageAge, o.Partitions, semel.ErrInvalidRequest))
	}
	return errs
}

// values says which keys are in a partition.
func (o *MigrateOptions) values(i int) string {
	if o.Cleanup != CleanupMessageTime {
		return fmt.Sprintf("WITH (MODULUS %d, REMAINDER %d)", o.Partitions, i)
	}
	from, to := "MINVALUE", "MAXVALUE"
	if i > 0 {
		from = slotStart(i)
	}
	if i < o.Partitions-1 {
		to = slotStart(i + 1)
	}
	return "FROM (" + from + ") TO (" + to + ")"
}

// slotStart is the first key of a slot.
func slotStart(slot int) string { return fmt.Sprintf("'%02x000000-0000-0000-0000-000000000000'", slot) }

// messageTimes reads what the tables were made for.
func (s session) messageTimes(ctx context.Context) (*messageTime, error) {
	sql := strings.ReplaceAll(timesSQL, "{times}", s.opts.quoted("times"))
	found, err := collect(ctx, s, sql, nil, func(row pgx.CollectableRow) (*messageTime, error) {
		var age int64
		m := &messageTime{of: s.opts.MessageTime}
		err := row.Scan(&age, &m.slots)
		m.age = time.Duration(age) * time.Microsecond
		return m, err
	})
	switch {
	case err != nil:
		return nil, err
	case len(found) != 1 || found[0].slots < leastSlots || found[0].age < time.Duration(found[0].slots)*messageAhead:
		return nil, fmt.Errorf("%s does not say how old a message may be: %w", s.opts.quoted("times"), ErrSchema)
	}
	return found[0], nil
}
