package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// Resolve implements [semel.Resolver]. It blocks for one round trip.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	return s.resolve(ctx, nil, &req)
}

// ResolveDigest implements [semel.DigestResolver]. It blocks for one round trip.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	req.Key = named(d)
	return s.resolve(ctx, &d, &req)
}

// named returns a key that stands for a digest in messages.
func named(d semel.Digest) semel.Key { return semel.Key{ID: "digest " + d.String()} }

// resolve settles an unknown record: that of the digest, or else of the key.
func (s *Store) resolve(ctx context.Context, d *semel.Digest, req *semel.ResolveRequest) error {
	if err := req.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	key, result, window := req.Key, req.Result, req.Window
	b := []byte{stateDone}
	if req.As == semel.Absent {
		b[0], result, window = 0, semel.Result{}, 1
	}
	b = binary.LittleEndian.AppendUint64(b, windowMillis(window))
	b = append(b, byte(result.Kind))
	answer, err := s.one(ctx, s.scripts.resolve, key, d, append(b, result.Data...))
	switch {
	case err != nil:
		return err
	case answer[0] == 'S':
		return fmt.Errorf("redisstore: resolve %s: %w", key, semel.ErrNotUnknown)
	case answer[0] == 'C':
		return damaged("resolve", key)
	case answer[0] == 'X':
		return refused("resolve", answer[1:])
	}
	return nil
}

// Remove implements [semel.Resolver]. It blocks for one round trip.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	answer, err := s.one(ctx, s.scripts.remove, key, nil, nil)
	return answer == "K", err
}

// RemoveDigest implements [semel.DigestResolver]. It blocks for one round trip.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (bool, error) {
	answer, err := s.one(ctx, s.scripts.remove, semel.Key{}, &d, nil)
	return answer == "K", err
}

// one runs a script for a digest, or without a digest for a key.
func (s *Store) one(ctx context.Context, sc *script, key semel.Key, d *semel.Digest, packed []byte) (answer string, err error) {
	if err := s.enter(ctx, sc.verb, 0, 0); err != nil {
		return "", err
	}
	if d == nil {
		memo := s.digests()
		of := memo.Key(key)
		d = &of
	}
	err = s.run(ctx, sc, &requests{units: []unit{{0, *d, 0, len(packed)}}, packed: packed}, func(_ int, a string) error {
		answer = a
		return nil
	})
	return answer, err
}

// auditName is the name, after the prefix, of the list with the audit log. The
// log says who changed a key by hand, and why.
const auditName = "audit"

// Audit appends a line to the audit log, which is as durable as everything on
// this server. Write the line before the change that it describes, so that no
// change lacks its line. Audit blocks for one round trip.
func (s *Store) Audit(ctx context.Context, line []byte) error {
	command := s.client.B().Rpush().Key(s.opts.Prefix + auditName).Element(rueidis.BinaryString(line)).Build()
	return storeError("audit", s.client.Do(ctx, command).Error())
}

// AuditTail returns the last lines of the audit log, at most most of them, the newest last. It blocks
// for one round trip.
func (s *Store) AuditTail(ctx context.Context, most int) (lines [][]byte, err error) {
	command := s.client.B().Lrange().Key(s.opts.Prefix + auditName).Start(-int64(most)).Stop(-1).Build()
	texts, err := s.client.Do(ctx, command).AsStrSlice()
	for _, text := range texts {
		lines = append(lines, []byte(text))
	}
	return lines, storeError("audit tail", err)
}

// scopeName is the start of the names, after the prefix, that have the rules of scopes.
const scopeName = "scope:"

// BindScope implements [semel.ScopeBinder]. It blocks for one round trip.
func (s *Store) BindScope(ctx context.Context, scope, rule string) (string, error) {
	if err := s.enter(ctx, "bind scope", 0, 0); err != nil {
		return "", err
	}
	name := s.opts.Prefix + scopeName + scope
	if rule == "" {
		bound, err := s.client.Do(ctx, s.client.B().Get().Key(name).Build()).ToString()
		if rueidis.IsRedisNil(err) {
			return "", nil
		}
		return bound, storeError("bind scope", err)
	}
	// A server with read-only replicas or a full memory refuses the first command.
	// The second still finds an earlier rule.
	results := s.client.DoMulti(ctx, s.client.B().Set().Key(name).Value(rule).Nx().Build(), s.client.B().Get().Key(name).Build())
	bound, err := results[1].ToString()
	if refused := results[0].Error(); rueidis.IsRedisNil(err) && refused != nil {
		err = refused
	}
	return bound, storeError("bind scope", err)
}
