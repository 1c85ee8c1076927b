package redisstore

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/digest"
)

// agreement is what all stores of a prefix share: the secret of the digests and
// the layout of the compact form. The first store writes it. Later stores adopt
// it or are refused. A store with another secret or layout would find every key
// new.
type agreement struct {
	secret digest.Secret
	given  bool // Redis keeps only a print of the secret, not the secret
	ring   *ring
}

const agreementVersion = "semel1"

// String returns the form that is kept in Redis.
func (a *agreement) String() string {
	s := agreementVersion
	if a.given {
		s += " given " + printOf(a.secret)
	} else {
		s += " secret " + hex.EncodeToString(a.secret[:])
	}
	if a.ring == nil {
		return s + " plain"
	}
	return fmt.Sprintf("%s compact %s %d %d", s, a.ring.window, a.ring.slices, a.ring.subs)
}

// printOf returns a value that tells secrets apart without revealing them.
func printOf(s digest.Secret) string {
	d := digest.New(s).Key(semel.Key{Scope: "semel", ID: "print of the secret"})
	return strconv.FormatUint(binary.BigEndian.Uint64(d[:8]), 16)
}

var errNoAgreement = errors.New("the value is not an agreement of stores")

// adopt returns the agreement that is kept in Redis. It returns an error if the
// kept agreement contradicts the wanted one.
func (a *agreement) adopt(kept string) (*agreement, error) {
	words := strings.Fields(kept)
	if len(words) < 4 || words[0] != agreementVersion {
		return nil, errNoAgreement
	}
	next := agreement{given: words[1] == "given"}
	switch {
	case next.given != a.given:
		return nil, fmt.Errorf("Options.Secret: secret given: %t, but when the prefix was first used: %t", a.given, next.given)
	case next.given && words[2] != printOf(a.secret):
		return nil, errors.New("Options.Secret: the secret differs from the one with which the prefix was first used")
	case next.given:
		next.secret = a.secret
	default:
		secret, err := hex.DecodeString(words[2])
		if err != nil || len(secret) != len(next.secret) {
			return nil, errNoAgreement
		}
		copy(next.secret[:], secret)
	}
	var err error
	next.ring, err = a.adoptRing(words[3:])
	return &next, err
}

func (a *agreement) adoptRing(words []string) (*ring, error) {
	if len(words) == 1 && words[0] == "plain" {
		if a.ring != nil {
			return nil, errors.New("Options.Compact: the prefix was first used without it")
		}
		return nil, nil
	}
	if len(words) != 4 || words[0] != "compact" {
		return nil, errNoAgreement
	}
	window, err1 := time.ParseDuration(words[1])
	slices, err2 := strconv.Atoi(words[2])
	subs, err3 := strconv.ParseUint(words[3], 10, 32)
	switch {
	case err1 != nil || err2 != nil || err3 != nil || window <= 0 || slices < 1 || subs < 1:
		return nil, errNoAgreement
	case a.ring == nil:
		return nil, fmt.Errorf("Options.Compact: the prefix was first used with windows of %v in %d slices", window, slices)
	case window != a.ring.window || slices != a.ring.slices:
		return nil, fmt.Errorf("Options.Compact: windows of %v in %d slices, but the prefix was first used with %v in %d", a.ring.window, a.ring.slices, window, slices)
	}
	return &ring{window: window, slices: slices, subs: uint32(subs)}, nil
}

// agreeCommands returns the commands that write an agreement if none exists,
// and read the kept one.
func (s *Store) agreeCommands(a *agreement) [2]rueidis.Completed {
	name := s.opts.Prefix + "meta"
	return [2]rueidis.Completed{
		s.client.B().Set().Key(name).Value(a.String()).Nx().Build(),
		s.client.B().Get().Key(name).Build(),
	}
}

// agree reads or writes the agreement when the store opens.
func (s *Store) agree(ctx context.Context, wanted *agreement) (*agreement, error) {
	commands := s.agreeCommands(wanted)
	results := s.client.DoMulti(ctx, commands[:]...)
	// A user who may only read still finds the agreement that others wrote.
	// Examine then reports why the store cannot claim anything.
	kept, err := results[1].ToString()
	if refused := results[0].Error(); rueidis.IsRedisNil(err) && refused != nil {
		err = refused
	}
	if err != nil {
		return nil, storeError("open", err)
	}
	a, err := wanted.adopt(kept)
	if err != nil {
		return nil, fmt.Errorf("redisstore: prefix %q: %w: %w", s.opts.Prefix, err, semel.ErrInvalidRequest)
	}
	return a, nil
}

// examineAgreement compares the options with the agreement of the prefix. It
// writes no agreement.
func (s *Store) examineAgreement(ctx context.Context) doctor.Finding {
	f := doctor.Finding{Subject: "prefix", Found: fmt.Sprintf("%q is in use", s.opts.Prefix)}
	kept, err := s.client.Do(ctx, s.client.B().Get().Key(s.opts.Prefix+"meta").Build()).ToString()
	switch {
	case rueidis.IsRedisNil(err):
		err, f.Found = nil, fmt.Sprintf("no store has used %q yet", s.opts.Prefix)
	case err == nil:
		wanted := &agreement{secret: s.opts.Secret, given: s.opts.Secret != digest.Secret{}}
		if c := s.opts.Compact; c != nil {
			wanted.ring = &ring{window: c.Window, slices: c.Slices}
		}
		_, err = wanted.adopt(kept)
	}
	if err = errors.Join(err, s.opts.validate()); err != nil {
		f.Severity, f.Found = doctor.Broken, err.Error()
		f.Cost, f.Remedy = "the store cannot be opened, and nothing is processed", "set what the other stores of the prefix set, or choose another prefix"
	}
	return f
}

// reminderEvery is how often a call checks that the agreement is still in
// Redis.
const reminderEvery = time.Second

// remind returns commands to send along with a call, once every reminderEvery.
// A server that came back without its data has lost the agreement. A process
// that starts then would write another one, and old and new processes would not
// find each other's keys. So running processes write their agreement again, or
// adopt the new one.
func (s *Store) remind() []rueidis.Completed {
	now, due := time.Now().UnixNano(), s.reminded.Load()
	if now < due || !s.reminded.CompareAndSwap(due, now+int64(reminderEvery)) {
		return nil
	}
	commands := s.agreeCommands(s.agreed.Load())
	return commands[:]
}

// readReminder reads the answers to the commands of remind. On an error it does
// nothing; a later call checks again.
func (s *Store) readReminder(results []rueidis.RedisResult) {
	if len(results) == 0 {
		return
	}
	kept, err := results[1].ToString()
	if err != nil {
		return
	}
	current := s.agreed.Load()
	if kept == current.String() {
		return
	}
	next, err := current.adopt(kept)
	if err != nil || current.ring != nil && *next.ring != *current.ring {
		// The server lost its data, and another process wrote an agreement with
		// other options.
		s.failed.Store(true)
		return
	}
	s.agreed.Store(next)
}
