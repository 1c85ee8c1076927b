package nats

import (
	"context"
	"errors"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
)

// ReadAll hands the messages that a stream has now to fn, from the oldest, until
// fn returns false. Subjects select messages; none means all. ReadAll uses no
// consumer, so it changes nothing at the server. It blocks until fn has seen the
// last message or ctx ends.
func ReadAll(ctx context.Context, url string, client []natsgo.Option, stream string, subjects []string, fn func(*semel.Message) bool) error {
	conn, js, err := connect(ctx, url, client)
	if err != nil {
		return err
	}
	defer conn.Close()
	from, err := streamOf(ctx, js, stream, false, nil)
	if err != nil {
		return failed(url, "", err)
	}
	last := from.CachedInfo().State.LastSeq
	for next := from.CachedInfo().State.FirstSeq; next <= last; next++ {
		// With a subject, the server answers with the next message that exists.
		raw, err := from.GetMsg(ctx, next, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return failed(url, "", err)
		}
		next = raw.Sequence
		if next > last || !matches(raw.Subject, subjects) {
			continue
		}
		m := &semel.Message{
			ID: raw.Header.Get(jetstream.MsgIDHeader), Body: append([]byte{}, raw.Data...), Time: raw.Time,
			Headers: append(headers(raw.Header), semel.Header{Name: SubjectHeader, Value: []byte(raw.Subject)}),
			Origin:  semel.Origin{Source: stream, Offset: int64(raw.Sequence)},
		}
		if !fn(m) {
			return nil
		}
	}
	return nil
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
