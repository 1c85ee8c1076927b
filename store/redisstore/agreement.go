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
	"github.com/semel-dev/semel/internal/digest"
)

// agreement is what all stores of a prefix have in common: the secret of the
// digests, and the form of what is done. The first one writes it, and the
// others take it or are refused: who digests otherwise, or looks elsewhere for
// what is done, would find every key new.
type agreement struct {
	secret digest.Secret
	given  bool // the secret is not kept in Redis, only a print of it
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

// printOf tells secrets apart without giving them away.
func printOf(s digest.Secret) string {
	d := digest.New(s).Key(semel.Key{Scope: "semel", ID: "print of the secret"})
	return strconv.FormatUint(binary.BigEndian.Uint64(d[:8]), 16)
}

var errNoAgreement = errors.New("what is kept is no agreement of stores")

// adopt takes over what is kept, as far as it does not contradict.
func (a *agreement) adopt(kept string) (*agreement, error) {
	words := strings.Fields(kept)
	if len(words) < 4 || words[0] != agreementVersion {
		return nil, errNoAgreement
	}
	next := agreement{given: words[1] == "given"}
	switch {
	case next.given != a.given:
		return nil, fmt.Errorf("Options.Secret: a secret is given: %t; it was when the prefix was first used: %t", a.given, next.given)
	case next.given && words[2] != printOf(a.secret):
		return nil, errors.New("Options.Secret: it is another than when the prefix was first used")
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
		return nil, fmt.Errorf("Options.Compact: windows of %v in %d slices; the prefix was first used with %v in %d", a.ring.window, a.ring.slices, window, slices)
	}
	return &ring{window: window, slices: slices, subs: uint32(subs)}, nil
}

// agreeCommands puts an agreement down where there is none, and asks which one
// is there.
func (s *Store) agreeCommands(a *agreement) [2]rueidis.Completed {
	name := s.opts.Prefix + "meta"
	return [2]rueidis.Completed{
		s.client.B().Set().Key(name).Value(a.String()).Nx().Build(),
		s.client.B().Get().Key(name).Build(),
	}
}

// agree finds or makes the agreement when the store is opened.
func (s *Store) agree(ctx context.Context, wanted *agreement) (*agreement, error) {
	commands := s.agreeCommands(wanted)
	results := s.client.DoMulti(ctx, commands[:]...)
	// Who may only read finds what others have agreed on: Examine tells why
	// nothing can be claimed there.
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

// examineAgreement compares the options with what the stores of the prefix have
// agreed on. It makes no agreement.
func (s *Store) examineAgreement(ctx context.Context) semel.Finding {
	f := semel.Finding{Subject: "prefix", Found: fmt.Sprintf("%q is in use", s.opts.Prefix)}
	kept, err := s.client.Do(ctx, s.client.B().Get().Key(s.opts.Prefix+"meta").Build()).ToString()
	switch {
	case rueidis.IsRedisNil(err):
		err, f.Found = nil, fmt.Sprintf("nobody has used %q yet", s.opts.Prefix)
	case err == nil:
		wanted := &agreement{secret: s.opts.Secret, given: s.opts.Secret != digest.Secret{}}
		if c := s.opts.Compact; c != nil {
			wanted.ring = &ring{window: c.Window, slices: c.Slices}
		}
		_, err = wanted.adopt(kept)
	}
	if err = errors.Join(err, s.opts.validate()); err != nil {
		f.Severity, f.Found = semel.Broken, err.Error()
		f.Cost, f.Remedy = "the store cannot be opened, and nothing is processed", "set what the other stores of the prefix set, or choose another prefix"
	}
	return f
}

// reminderEvery is how often a call looks whether the agreement is still there.
const reminderEvery = time.Second

// remind returns commands to send along with a call, if it is time. A server
// that came back without its data has lost the agreement; a process that starts
// then would make another one, and the old and the new ones would not know each
// other's keys. So those that run put it down again, or take the new one over.
func (s *Store) remind() []rueidis.Completed {
	now, due := time.Now().UnixNano(), s.reminded.Load()
	if now < due || !s.reminded.CompareAndSwap(due, now+int64(reminderEvery)) {
		return nil
	}
	commands := s.agreeCommands(s.agreed.Load())
	return commands[:]
}

// reminded takes the answer to the commands of remind. An error is not worth
// more than to ask again later.
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
		// The server has begun anew, under terms that are not ours.
		s.failed.Store(true)
		return
	}
	s.agreed.Store(next)
}
