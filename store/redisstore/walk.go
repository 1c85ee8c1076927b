package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// errStopped means that the caller of a listing wants no more records.
var errStopped = errors.New("stopped")

// page has the records and sets that one round trip of a walk found.
type page struct {
	now     time.Time // time of the server
	records []semel.Record
	sets    []markedSet
	bytes   int64 // size of names and values
	// sampledBytes is the memory of sampled names.
	sampled, sampledBytes int64
}

// markedSet is the size and expiry of a set of the compact form.
type markedSet struct {
	members int64
	expires time.Time
}

const (
	// pageNames is about how many names are read in one round trip.
	pageNames = 256
	// pageCut is how many bytes of a record are read at first. Results may be
	// long and are not needed.
	pageCut = 1024
	// noSuchName is the answer of PTTL for a name that the server does not have.
	noSuchName = -2
)

// walk visits all names of the store on all masters.
func (s *Store) walk(ctx context.Context, verb string, visit func(*page) error) error {
	masters, err := s.masters(ctx, verb)
	if err != nil {
		return err
	}
	for _, node := range masters {
		if err := s.walkNode(ctx, verb, node, "string", s.readRecords, visit); err != nil {
			return err
		}
		if s.ring == nil {
			continue
		}
		if err := s.walkNode(ctx, verb, node, "set", s.readSets, visit); err != nil {
			return err
		}
	}
	return nil
}

// masters returns the servers that have the names.
func (s *Store) masters(ctx context.Context, verb string) (list []rueidis.Client, err error) {
	if err := s.enter(ctx, verb, 0, 0); err != nil {
		return nil, err
	}
	for _, node := range s.client.Nodes() {
		hello, err := node.Do(ctx, node.B().Arbitrary("HELLO").Build()).AsMap()
		if err != nil {
			return nil, storeError(verb, err)
		}
		if text(hello, "role") == "master" {
			list = append(list, node)
		}
	}
	return list, nil
}

// searchFor limits the time in which KeysWithoutRule looks at names.
const searchFor = 2 * time.Second

// KeysWithoutRule reports whether the store has keys and binds no scope to a rule, as
// versions left it that kept no rules. It does not know the scopes of such keys. It looks at
// names for at most two seconds. If the server has more names than that, a scope that is
// bound may be missed. It may be called concurrently. Its errors are those of a claim.
func (s *Store) KeysWithoutRule(ctx context.Context) (bool, error) {
	return s.keysWithoutRule(ctx, time.Now().Add(searchFor))
}

func (s *Store) keysWithoutRule(ctx context.Context, until time.Time) (bool, error) {
	const verb = "keys without rule"
	masters, err := s.masters(ctx, verb)
	if err != nil {
		return false, err
	}
	keys, pattern := false, escapeGlob(s.opts.Prefix)+"*"
	for _, node := range masters {
		for cursor := uint64(0); time.Now().Before(until); {
			entry, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(pattern).Count(4*pageNames).Build()).AsScanEntry()
			if err != nil {
				return false, storeError(verb, err)
			}
			for _, name := range entry.Elements {
				name = strings.TrimPrefix(name, s.opts.Prefix)
				if strings.HasPrefix(name, scopeName) {
					return false, nil
				}
				keys = keys || strings.HasPrefix(name, "{") && !strings.HasSuffix(name, "}token")
			}
			if cursor = entry.Cursor; cursor == 0 {
				break
			}
		}
	}
	return keys, nil
}

// walkNode visits the names of one type on one server.
func (s *Store) walkNode(ctx context.Context, verb string, node rueidis.Client, kind string,
	read func(context.Context, rueidis.Client, []string) (*page, error), visit func(*page) error) error {
	pattern := escapeGlob(s.opts.Prefix) + "{*"
	for cursor := uint64(0); ; {
		entry, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(pattern).Count(pageNames).Type(kind).Build()).AsScanEntry()
		if err != nil {
			return storeError(verb, err)
		}
		if len(entry.Elements) > 0 {
			p, err := read(ctx, node, entry.Elements)
			if err != nil {
				return storeError(verb, err)
			}
			if err := visit(p); err != nil {
				return err
			}
		}
		if cursor = entry.Cursor; cursor == 0 {
			return nil
		}
	}
}

// query sends, in one pipeline, the commands that ask returns for each name, and
// returns a page with the server's time and the answers to these commands.
func query(ctx context.Context, node rueidis.Client, names []string, ask func(b rueidis.Builder, name string) []rueidis.Completed) (p *page, now int64, answers []rueidis.RedisResult, err error) {
	commands := rueidis.Commands{node.B().Time().Build()}
	for _, name := range names {
		commands = append(commands, ask(node.B(), name)...)
	}
	if len(names) > 0 {
		commands = append(commands, node.B().MemoryUsage().Key(names[0]).Build())
	}
	answers = node.DoMulti(ctx, commands...)
	if now, err = serverTime(answers[0]); err != nil {
		return nil, 0, nil, err
	}
	p = &page{now: instant(now)}
	answers = answers[1:]
	if n := len(answers) - 1; n >= 0 {
		err = p.sample(answers[n])
		answers = answers[:n]
	}
	return p, now, answers, err
}

// readRecords reads the records with these names.
func (s *Store) readRecords(ctx context.Context, node rueidis.Client, names []string) (*page, error) {
	digests := make([]semel.Digest, 0, len(names))
	kept := names[:0]
	for _, name := range names {
		if d, ok := s.digestOf(name); ok {
			kept, digests = append(kept, name), append(digests, d)
		}
	}
	p, now, answers, err := query(ctx, node, kept, func(b rueidis.Builder, name string) []rueidis.Completed {
		return []rueidis.Completed{
			b.Getrange().Key(name).Start(0).End(pageCut - 1).Build(), b.Strlen().Key(name).Build(), b.Pttl().Key(name).Build(),
		}
	})
	if err != nil {
		return nil, err
	}
	for i, name := range kept {
		head, err1 := answers[3*i].ToString()
		length, err2 := answers[3*i+1].AsInt64()
		lasts, err3 := answers[3*i+2].AsInt64()
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		if head == "" || lasts == noSuchName {
			continue // the record expired before one of the three commands
		}
		r, ok := decode(head)
		if !ok && length > int64(len(head)) {
			// The readable key is longer than what was read.
			whole, err := node.Do(ctx, node.B().Get().Key(name).Build()).ToString()
			if rueidis.IsRedisNil(err) {
				continue
			} else if err != nil {
				return nil, err
			}
			r, ok = decode(whole)
			head, length = whole, int64(len(whole))
		}
		if !ok {
			return nil, fmt.Errorf("the record %q is damaged: %w", name, semel.ErrCorrupt)
		}
		p.bytes += int64(len(name)) + length
		if s.inGrace(&r, lasts) {
			continue // the set counts this key
		}
		if r.state == stateHeld && r.leaseEnd <= now {
			r.state = stateUnknown
		}
		shown := r.show(now, lasts)
		shown.Digest = digests[i]
		shown.ResultSize += int(length) - len(head)
		p.records = append(p.records, shown)
	}
	return p, nil
}

// inGrace reports whether a key is in the compact form and has its record only
// for the grace.
func (s *Store) inGrace(r *record, lasts int64) bool {
	return s.ring != nil && r.publicState() == semel.Done && r.result.Kind == semel.NoResult && r.print.IsZero() &&
		lasts >= 0 && lasts <= s.opts.Compact.Grace.Milliseconds()+1
}

// readSets reads the sizes of the sets with these names.
func (s *Store) readSets(ctx context.Context, node rueidis.Client, names []string) (*page, error) {
	p, now, answers, err := query(ctx, node, names, func(b rueidis.Builder, name string) []rueidis.Completed {
		return []rueidis.Completed{b.Scard().Key(name).Build(), b.Pttl().Key(name).Build()}
	})
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		members, err1 := answers[2*i].AsInt64()
		lasts, err2 := answers[2*i+1].AsInt64()
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		if members == 0 || lasts == noSuchName {
			continue
		}
		p.sets = append(p.sets, markedSet{members, instant(now + lasts*1000)})
		p.bytes += int64(len(name)) + 8*members
	}
	return p, nil
}

// sample notes the memory of a name. A name that has expired has none.
func (p *page) sample(result rueidis.RedisResult) error {
	n, err := result.AsInt64()
	if rueidis.IsRedisNil(err) {
		return nil
	} else if err != nil {
		return err
	}
	p.sampled++
	p.sampledBytes += n
	return nil
}

// serverTime reads the answer to TIME in microseconds.
func serverTime(result rueidis.RedisResult) (int64, error) {
	parts, err := result.AsStrSlice()
	if err != nil {
		return 0, err
	}
	var seconds, micros int64
	if _, err := fmt.Sscan(strings.Join(parts, " "), &seconds, &micros); err != nil {
		return 0, err
	}
	return seconds*1e6 + micros, nil
}
