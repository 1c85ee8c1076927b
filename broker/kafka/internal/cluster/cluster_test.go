package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestDialErrorTellsWhetherARetryHelps(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig) {
		client, err := Dial(b.Context(), b.Reach()...)
		kafkatest.Must(b.T, err)
		client.Close()
		if _, err := Dial(b.Context(), append(b.Reach(), kgo.TransactionalID("t"), kgo.DisableIdempotentWrite())...); !errors.Is(err, semel.ErrInvalidRequest) {
			b.Errorf("options that exclude each other: %v", err)
		}
		none := new(NoBrokerError)
		_, err = Dial(b.Context(), kgo.SeedBrokers("10.0.0.1:9092"), kgo.Dialer(b.Dial))
		if !errors.As(err, &none) || !errors.Is(err, semel.ErrStoreUnavailable) || errors.Is(err, semel.ErrInvalidRequest) {
			b.Errorf("no broker there: %v", err)
		}
		// The second seed answers although the first one does not.
		client, err = Dial(b.Context(), kgo.SeedBrokers(append([]string{"10.0.0.1:9092"}, b.Cluster.ListenAddrs()...)...), kgo.Dialer(b.Dial))
		kafkatest.Must(b.T, err)
		client.Close()
	})
}

func TestErrorsOfBrokersHaveAClass(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		kerr.TopicAuthorizationFailed: "refused", kerr.SaslAuthenticationFailed: "refused", kerr.InconsistentGroupProtocol: "refused",
		kerr.InvalidGroupID: "invalid", kerr.InvalidSessionTimeout: "invalid",
		kerr.NotLeaderForPartition: "", io.EOF: "",
		Damaged("rows of %s are lost", "t"): "final", fmt.Errorf("x: %w", semel.ErrInvalidRequest): "final",
	} {
		got := ""
		for class, is := range map[string]bool{"refused": Refused(err), "invalid": Invalid(err), "final": IsFinal(err)} {
			if is {
				got += class
			}
		}
		if got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
	if err := Damaged("rows of %s are lost: %w", "t", io.EOF); err.Error() != "rows of t are lost: EOF" || !errors.Is(err, semel.ErrCorrupt) || !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}

func TestARequestIsRepeatedForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 1
		for AsksAgain(t.Context(), began, tries, fmt.Errorf("x: %w", kerr.UnknownTopicOrPartition)) {
			tries++
		}
		if took := time.Since(began); took < LimitsWithin || took > LimitsWithin+time.Second || tries < 5 {
			t.Errorf("%d tries in %v", tries, took)
		}
		for _, err := range []error{kerr.TopicAuthorizationFailed, io.EOF} {
			if AsksAgain(t.Context(), time.Now(), 1, err) {
				t.Errorf("%v is retried", err)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if AsksAgain(ended, time.Now(), 1, kerr.UnknownTopicOrPartition) {
			t.Error("a request whose context ended is retried")
		}
	})
}

func TestLastingContextOutlivesItsParent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		last, release := Lasting(ctx, time.Minute)
		time.Sleep(time.Hour)
		if last.Err() != nil {
			t.Error("it ended before its context")
		}
		cancel()
		began := time.Now()
		<-last.Done()
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it ended %v after its context", took)
		}
		release()
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		last, release = Lasting(ctx, time.Minute)
		release()
		if last.Err() == nil {
			t.Error("it lasts after it was released")
		}
	})
}

func TestSomeTopicsGetThePartitionOfTheCaller(t *testing.T) {
	t.Parallel()
	p := Partitioner{"mine": true}
	r := &kgo.Record{Key: []byte("a"), Partition: 5}
	if got := p.ForTopic("mine").Partition(r, 8); got != 5 {
		t.Errorf("the partition of the caller is %d", got)
	}
	if got, want := p.ForTopic("other").Partition(r, 8), kgo.StickyKeyPartitioner(nil).ForTopic("other").Partition(r, 8); got != want {
		t.Errorf("the partition of the key is %d, want %d", got, want)
	}
}

func TestTransactionVersionShowsWhetherLateWritesAreFenced(t *testing.T) {
	t.Parallel()
	feature := func(name string, level int16) kmsg.ApiVersionsResponseFinalizedFeature {
		return kmsg.ApiVersionsResponseFinalizedFeature{Name: name, MaxVersionLevel: level}
	}
	for _, c := range []struct {
		features []kmsg.ApiVersionsResponseFinalizedFeature
		level    string
		ok       bool
	}{
		{nil, "not set", false},
		{[]kmsg.ApiVersionsResponseFinalizedFeature{feature("metadata.version", 25)}, "not set", false},
		{[]kmsg.ApiVersionsResponseFinalizedFeature{feature("metadata.version", 25), feature("transaction.version", 1)}, "1", false},
		{[]kmsg.ApiVersionsResponseFinalizedFeature{feature("transaction.version", 2)}, "2", true},
	} {
		if level, ok := TransactionVersion(c.features); level != c.level || ok != c.ok {
			t.Errorf("%v: %s, %v; want %s, %v", c.features, level, ok, c.level, c.ok)
		}
	}
}
