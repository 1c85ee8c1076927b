package nats

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
)

// ReadAll hands the messages that a stream has now to fn, from the oldest, until
// fn returns false. Subjects select messages; none means all. ReadAll uses no
// consumer, so it changes nothing at the server. It blocks until fn has seen the
// last message or ctx ends.
func ReadAll(ctx context.Context, url string, client []natsgo.Option, stream string, subjects []string, fn func(*semel.Message) bool) error {
	_, err := ReadNewest(ctx, url, client, stream, subjects, time.Time{}, 0, fn)
	return err
}

// ReadNewest is [ReadAll] for the messages since a time that have one of the most newest
// sequences of the stream. The zero time and 0 are no limits. left reports whether older
// sequences were left out that were stored since.
func ReadNewest(ctx context.Context, url string, client []natsgo.Option, stream string, subjects []string, since time.Time, most int64, fn func(*semel.Message) bool) (left bool, err error) {
	var rights denied
	conn, js, err := connect(ctx, url, client, &rights)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	err = rights.during(ctx, func(ctx context.Context) (err error) {
		left, err = readNewest(ctx, js, stream, subjects, since, most, fn)
		return err
	})
	if err != nil {
		err = failed(url, "", err)
	}
	return left, err
}

func readNewest(ctx context.Context, js jetstream.JetStream, stream string, subjects []string, since time.Time, most int64, fn func(*semel.Message) bool) (left bool, err error) {
	from, err := streamOf(ctx, js, stream, false, nil)
	if err != nil {
		return false, err
	}
	next, last := from.CachedInfo().State.FirstSeq, from.CachedInfo().State.LastSeq
	if !since.IsZero() {
		if next, err = firstSince(ctx, from, since); err != nil {
			return false, err
		}
	}
	if most > 0 && last >= next+uint64(most) {
		next, left = last-uint64(most)+1, true
	}
	one := ">"
	if len(subjects) == 1 {
		one = subjects[0] // the server selects
	}
	for ; next <= last; next++ {
		// With a subject, the server answers with the next message that exists.
		raw, err := from.GetMsg(ctx, next, jetstream.WithGetMsgSubject(one))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return left, nil
		}
		if err != nil {
			return left, err
		}
		next = raw.Sequence
		if next > last || !matches(raw.Subject, subjects) {
			continue
		}
		m := &semel.Message{
			ID: raw.Header.Get(jetstream.MsgIDHeader), Body: append([]byte{}, raw.Data...), Time: raw.Time,
			Headers: append(headers(raw.Header), semel.Header{Name: SubjectHeader, Value: []byte(raw.Subject)}),
			Origin:  origin(stream, raw.Sequence, raw.Time),
		}
		if !fn(m) {
			return left, nil
		}
	}
	return left, nil
}

// firstSince returns the sequence from which on messages were stored since a time.
func firstSince(ctx context.Context, from jetstream.Stream, since time.Time) (uint64, error) {
	first, end := from.CachedInfo().State.FirstSeq, from.CachedInfo().State.LastSeq+1
	for first < end {
		middle := first + (end-first)/2
		raw, err := from.GetMsg(ctx, middle, jetstream.WithGetMsgSubject(">"))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && !raw.Time.Before(since):
			end = middle
		case err != nil:
			return 0, err
		default:
			first = raw.Sequence + 1
		}
	}
	return first, nil
}

// Streams returns the names of the streams that take some subject of these patterns, in
// their order. It blocks until the server has answered.
func Streams(ctx context.Context, url string, client []natsgo.Option, patterns ...string) (names []string, err error) {
	var rights denied
	conn, js, err := connect(ctx, url, client, &rights)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, end := rights.watch(ctx)
	defer func() { _ = end(nil) }()
	for _, pattern := range patterns {
		list := js.StreamNames(ctx, jetstream.WithStreamListSubject(pattern))
		for name := range list.Name() {
			names = append(names, name)
		}
		if err := list.Err(); err != nil {
			return nil, failed(url, "", end(err))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// matches reports whether a subject matches one of some patterns, in which * stands
// for one token and > for all that remain. No patterns match everything.
func matches(subject string, patterns []string) bool {
	tokens := strings.Split(subject, ".")
	for _, pattern := range patterns {
		if matchesOne(tokens, strings.Split(pattern, ".")) {
			return true
		}
	}
	return len(patterns) == 0
}

func matchesOne(tokens, pattern []string) bool {
	for i, p := range pattern {
		switch {
		case i >= len(tokens):
			return false
		case p == ">":
			return true
		case p != "*" && p != tokens[i]:
			return false
		}
	}
	return len(tokens) == len(pattern)
}
