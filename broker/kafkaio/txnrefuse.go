package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// refusals are the topics to which outputs of a Transform cannot be written: such an
// output fails its message, and nothing else. They are learned from transactions that
// failed for them, so that a topic that can be written costs nothing.
type refusals struct {
	topics map[string]refusal

	mu    sync.Mutex // guards what follows
	heard map[string]error
}

type refusal struct {
	err error
	at  time.Time
}

const (
	// refusedFor is for how long a topic may not be written before that is tried
	// again.
	refusedFor = time.Minute
	// mostRefused bounds how many topics are remembered.
	mostRefused = 1000
)

// hear notes that a record could not be written for its topic. The client calls it.
func (f *refusals) hear(topic string, err error) {
	if !saysTopic(err) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.heard == nil {
		f.heard = map[string]error{}
	}
	f.heard[topic] = err
}

// saysTopic reports whether an error is what brokers have against a topic, and not why
// they cannot say.
func saysTopic(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.InvalidTopicException) || errors.Is(err, kerr.TopicAuthorizationFailed)
}

// learn asks about the topics that were heard of, but for those that the Transactor
// writes itself: without these nothing goes on. The error has the session begin anew:
// older brokers refuse a whole transaction for a topic that may not be written, and
// its producer is of no more use.
func (w *worker) learn(ctx context.Context) (again error) {
	f := &w.refusals
	f.mu.Lock()
	heard := f.heard
	f.heard = nil
	f.mu.Unlock()
	maps.DeleteFunc(heard, func(topic string, _ error) bool { return slices.Contains(w.opts.written(), topic) })
	if f.topics == nil || len(f.topics) > mostRefused {
		f.topics = map[string]refusal{}
	}
	began := time.Now()
	for topic, cause := range heard {
		err := errors.New("kafkaio: it was not asked yet")
		for tries := 1; err != nil; tries++ { // all of them share the time for new ones
			if err = askTopic(ctx, w.s.t.adm(), topic, cause); !asksAgain(ctx, began, tries, err) {
				break
			}
		}
		if saysTopic(err) {
			f.topics[topic] = refusal{err, time.Now()}
		}
		if errors.Is(err, kerr.TopicAuthorizationFailed) {
			again = fmt.Errorf("%w: topic %s: %v", errAgain, topic, err) // the cause would end all
		}
	}
	return again
}

// askTopic returns nil if a topic may be written, what brokers say against it, or why
// they do not answer. Its cause is what was said of it before.
func askTopic(ctx context.Context, adm *kadm.Client, topic string, cause error) error {
	topics, err := adm.ListTopics(kadm.WithAuthorizedOps(ctx), topic)
	if err != nil {
		return err
	}
	if err := topics[topic].Err; err != nil {
		return err
	}
	may := topics[topic].AuthorizedOperations
	if errors.Is(cause, kerr.TopicAuthorizationFailed) && len(may) > 0 && !slices.Contains(may, kadm.OpWrite) {
		return kerr.TopicAuthorizationFailed
	}
	return nil
}

// refused returns the permanent error of an output whose topic cannot be written, or
// nil. A topic may have come to be there: where brokers cannot say, the error has the
// session begin anew, and the message waits for them.
func (w *worker) refused(ctx context.Context, topic string) error {
	why, ok := w.refusals.topics[topic]
	if !ok {
		return nil
	}
	remedy := "mend the Transform"
	switch {
	case errors.Is(why.err, kerr.UnknownTopicOrPartition):
		switch err := askTopic(ctx, w.s.t.adm(), topic, nil); {
		case err == nil:
			delete(w.refusals.topics, topic)
			return nil
		case !saysTopic(err):
			return fmt.Errorf("%w: topic %s: %v", errAgain, topic, err) // not wrapped: it is not the end
		}
		remedy = "make it, or mend the Transform"
	case errors.Is(why.err, kerr.TopicAuthorizationFailed):
		if time.Since(why.at) > refusedFor {
			delete(w.refusals.topics, topic)
			return nil
		}
		remedy = "allow Write on it, or mend the Transform"
	}
	return semel.Permanent(fmt.Errorf("an output of the Transform for topic %q: %w: %s", topic, why.err, remedy))
}

// topicOf returns the topic of an output of a Transform.
func (w *worker) topicOf(out *kgo.Record) string {
	if out.Topic == "" {
		return w.opts.Output
	}
	return out.Topic
}
