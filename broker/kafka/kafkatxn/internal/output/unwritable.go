package output

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// Unwritable has the topics to which outputs of a Transform cannot be written. An output for such
// a topic fails only its message. It learns them from failed transactions, so that other
// topics cost nothing. One goroutine uses it; any may call Hear.
type Unwritable struct {
	topics map[string]refusal

	mu    sync.Mutex // guards the fields below
	heard map[string]error
}

type refusal struct {
	err error
	at  time.Time
}

const (
	// refusedFor is how long no output is written to a topic before the next try.
	refusedFor = time.Minute
	// mostRefused bounds how many topics are remembered.
	mostRefused = 1000
)

// Hear notes that a record could not be written because of its topic. It may be called
// concurrently.
func (f *Unwritable) Hear(topic string, err error) {
	if !cluster.SaysTopic(err) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.heard == nil {
		f.heard = map[string]error{}
	}
	f.heard[topic] = err
}

// Learn asks the brokers about the topics with errors, except for needed ones. If it returns
// an error, the session must restart: older brokers refuse a whole transaction because of a
// topic without write permission, and its producer is then unusable.
func (f *Unwritable) Learn(ctx context.Context, adm *kadm.Client, needed []string) (restart error) {
	f.mu.Lock()
	heard := f.heard
	f.heard = nil
	f.mu.Unlock()
	if f.topics == nil || len(f.topics) > mostRefused {
		f.topics = map[string]refusal{}
	}
	began := time.Now()
	for topic, cause := range heard {
		if slices.Contains(needed, topic) {
			continue
		}
		err := errors.New("kafka: the brokers were not asked yet")
		for tries := 1; err != nil; tries++ { // new topics share the time
			if err = cluster.AskTopic(ctx, adm, topic, cause); !cluster.AsksAgain(ctx, began, tries, err) {
				break
			}
		}
		if cluster.SaysTopic(err) {
			f.topics[topic] = refusal{err, time.Now()}
		}
		if errors.Is(err, kerr.TopicAuthorizationFailed) {
			restart = fmt.Errorf("topic %s: %w", topic, err)
		}
	}
	return restart
}

// Check returns the permanent error of an output whose topic cannot be written, or nil. It
// asks the brokers for missing topics again. If they do not answer, it returns restart: the
// session must restart, and the message waits.
func (f *Unwritable) Check(ctx context.Context, adm *kadm.Client, topic string) (err, restart error) {
	why, ok := f.topics[topic]
	if !ok {
		return nil, nil
	}
	remedy := "fix the Transform"
	switch {
	case errors.Is(why.err, kerr.UnknownTopicOrPartition):
		switch err := cluster.AskTopic(ctx, adm, topic, nil); {
		case err == nil:
			delete(f.topics, topic)
			return nil, nil
		case !cluster.SaysTopic(err):
			return nil, fmt.Errorf("topic %s: %w", topic, err)
		}
		remedy = "create it, or fix the Transform"
	case errors.Is(why.err, kerr.TopicAuthorizationFailed):
		if time.Since(why.at) > refusedFor {
			delete(f.topics, topic)
			return nil, nil
		}
		remedy = "allow Write on it, or fix the Transform"
	}
	return semel.Permanent(fmt.Errorf("an output of the Transform for topic %q: %w: %s", topic, why.err, remedy)), nil
}
