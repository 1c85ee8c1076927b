package kafkatxn

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/test/kafkatest"
)

// refused checks that a Transactor ends with an error that says this.
func (b *bubble) refused(opts TransactorOptions, want string) {
	b.Helper()
	b.refusedAs(semel.ErrInvalidRequest, opts, want)
}

// damaged starts a pipeline that must end because its topics are damaged. The options are
// not the cause, so the error must not say that they are.
func (b *bubble) damaged(opts TransactorOptions, want string) {
	b.Helper()
	b.refusedAs(semel.ErrCorrupt, opts, want)
}

func (b *bubble) refusedAs(class error, opts TransactorOptions, want string) {
	b.Helper()
	p := b.start(opts)
	if !kafkatest.Within(time.Minute, func() bool {
		select {
		case <-p.Done:
			return true
		default:
			return false
		}
	}) {
		b.Errorf("it runs, want %q", want)
		p.Stop()
		return
	}
	if p.Err == nil || !strings.Contains(p.Err.Error(), want) || !errors.Is(p.Err, class) || class == semel.ErrCorrupt && errors.Is(p.Err, semel.ErrInvalidRequest) {
		b.Errorf("it ended with %v, want %q and the class %v", p.Err, want, class)
	}
}

func TestRepartitionTopicsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setUp func(b *bubble, opts *TransactorOptions)
		want  string
	}{
		"more partitions than the keys": {func(b *bubble, _ *TransactorOptions) {
			kafkatest.Must(b.T, b.Cluster.CreateTopic("g-repartition", 4, nil))
			kafkatest.Must(b.T, b.Cluster.CreateTopic("g-keys", 2, nil))
		}, "has 4 partitions, and the keys in g-keys were remembered with 2"},
		"compacted": {func(b *bubble, _ *TransactorOptions) {
			kafkatest.Must(b.T, b.Cluster.CreateTopic("g-repartition", 2, map[string]string{"cleanup.policy": "compact"}))
		}, "of the records of one id all but the last would be lost"},
		"compacted, which the brokers do not tell yet": {func(b *bubble, _ *TransactorOptions) {
			kafkatest.Must(b.T, b.Cluster.CreateTopic("g-repartition", 2, map[string]string{"cleanup.policy": "compact"}))
			b.Hide("g-repartition", kerr.UnknownTopicOrPartition, 2)
		}, "of the records of one id all but the last would be lost"},
		"used without the stage before": {func(b *bubble, opts *TransactorOptions) {
			without := *opts
			without.Repartition, without.skipSample = nil, true
			p := b.start(without)
			b.Write(scattered(0, 5, 2)...)
			p.Wait(10, kafkatest.Settled)
			p.Stop()
		}, "group g has read in without a repartition stage"},
		"used with the stage before": {func(b *bubble, opts *TransactorOptions) {
			p := b.start(*opts)
			b.Write(scattered(0, 5, 2)...)
			p.Wait(10, kafkatest.Settled)
			p.Stop()
			opts.Repartition = nil
		}, "group g-repartition has copied in for a repartition stage"},
		"grown": {func(b *bubble, opts *TransactorOptions) {
			p := b.start(*opts)
			b.Write(scattered(0, 5, 2)...)
			p.Wait(10, kafkatest.Settled)
			_, err := kadm.NewClient(b.Client).CreatePartitions(b.Context(), 2, "g-repartition")
			kafkatest.Must(b.T, err)
			b.Write(scattered(3, 5, 2)...)
			_ = retry.Sleep(b.Context(), 10*time.Minute) // it knows by then, and ends
			p.Cancel()
			if <-p.Done; p.Err == nil || !strings.Contains(p.Err.Error(), "has 4 partitions, and the keys in g-keys were remembered with 2") {
				b.Errorf("it ended with %v", p.Err)
			}
			for _, part := range b.Cluster.PartitionInfos("g-repartition")[2:] {
				if part.HighWatermark > 0 {
					b.Errorf("something was copied to the new partition %d", part.Partition)
				}
			}
		}, "has 4 partitions, and the keys in g-keys were remembered with 2"},
		"gone": {func(b *bubble, opts *TransactorOptions) {
			p := b.start(*opts)
			b.Write(scattered(0, 5, 2)...)
			p.Wait(10, kafkatest.Settled)
			p.Stop()
			_, err := kadm.NewClient(b.Client).DeleteTopics(b.Context(), "g-repartition")
			kafkatest.Must(b.T, err)
		}, "what was not read of it would be lost: delete that group"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.repartitioned()
				c.setUp(b, &opts)
				b.refused(opts, c.want)
			})
		})
	}
}

// TestAfterARefusalTheStageMayHaveAnyNumberOfPartitions turns the stage on where a
// start was refused because of copies that do not meet.
func TestAfterARefusalTheStageMayHaveAnyNumberOfPartitions(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.Write(scattered(0, 5, 2)...)
		opts := b.repartitioned()
		opts.Repartition = nil
		b.refused(opts, "repartition: true of the source")
		kafkatest.Must(t, b.Cluster.CreateTopic("g-repartition", 5, nil))
		opts.Repartition = &Repartition{}
		p := b.start(opts)
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		b.eachOnce(5)
	})
}

// The stage continues where a pipeline without it was, as the error of a refusal says.
func TestTheStageContinuesFromTheOffsetsOfAnotherGroup(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.repartitioned()
		opts.Repartition = nil
		p := b.start(opts)
		b.Write(kafkatest.Record(0, "k", `{"id":1}`))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		adm := kadm.NewClient(b.Client)
		committed, err := adm.FetchOffsets(b.Context(), "g")
		kafkatest.Must(t, err)
		kafkatest.Must(t, adm.CommitAllOffsets(b.Context(), repartitionGroup("new"), committed.Offsets()))
		opts.Group, opts.Repartition = "new", &Repartition{}
		b.refused(opts, "new-repartition, into which group new-repartition has copied in, does not exist")
		kafkatest.Must(t, b.Cluster.CreateTopic("new-repartition", 1, nil))
		p = b.start(opts)
		b.Write(kafkatest.Record(0, "k", `{"id":2}`))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		if got, want := b.bodies("out"), `{"id":1} {"id":2}`; got != want {
			t.Errorf("outputs %q, want %q", got, want)
		}
	})
}

// TestUnreadCopiesThatAreGoneEndTheProgram deletes records between the stages
// that no group has read.
func TestUnreadCopiesThatAreGoneEndTheProgram(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.repartitioned()
		p := b.start(opts)
		b.Write(scattered(0, 5, 1)...)
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		// Copies that come while no member decides, as it were.
		end := b.Cluster.PartitionInfos("g-repartition")[0].HighWatermark
		for _, r := range scattered(5, 1, 1) {
			r.Topic = "g-repartition"
			b.Write(r)
		}
		upTo := kadm.Offsets{}
		upTo.AddOffset("g-repartition", 0, end+1, -1)
		_, err := kadm.NewClient(b.Client).DeleteRecords(b.Context(), upTo)
		kafkatest.Must(t, err)
		p = b.start(opts)
		<-p.Done
		if p.Err == nil || !errors.Is(p.Err, cluster.ErrOutOfRange) || !strings.Contains(p.Err.Error(), "records were lost before they were read") {
			t.Errorf("it ended with %v", p.Err)
		}
	})
}

func TestRepartitionOptionsAreChecked(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.repartitioned()
		opts.Repartition = &Repartition{Topic: "out"}
		_, err := NewTransactor(&opts)
		if want := "Repartition.Topic: out is another topic"; err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	})
}

// TestMembersOfBothStagesComeAndGo lets programs join, leave and die at random.
func TestMembersOfBothStagesComeAndGo(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	inRealTime(t, 4, func(b *bubble) {
		write := func(from, n int) { b.Write(scattered(from, n, 4)...) }
		b.eachOnce(b.comeAndGo(random, 25, []string{"", ""}, b.repartitioned, write, b.through))
	}, kfake.NumBrokers(3))
}

func TestTheTopicBetweenTheStagesIsExamined(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.repartitioned()
		examined := func() []string {
			t.Helper()
			findings, err := kafka.Examine(b.Context(), b.Reach(), &kafka.ExamineOptions{
				Group: "g", Inputs: []string{"in"}, Output: "out", Changelogs: []string{"g-keys"}, Repartition: "g-repartition", Transactional: true, Window: time.Hour,
			})
			kafkatest.Must(t, err)
			return kafkatest.Found(findings)
		}
		kafkatest.Has(t, examined(), "notice g-repartition: does not exist yet")
		p := b.start(opts)
		b.Write(scattered(0, 5, 2)...)
		p.Wait(10, kafkatest.Settled)
		kafkatest.Has(t, examined(), "fine partitions of g-repartition: 2, and 2 of g-keys", "fine g-repartition retention.ms: for ever",
			"fine group g: Stable, 1 members", "fine group g-repartition: Stable, 1 members")
		p.Stop()
		adm := kadm.NewClient(b.Client)
		_, err := adm.AlterTopicConfigs(b.Context(), []kadm.AlterConfig{
			{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("60000")}, {Op: kadm.SetConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact,delete")},
		}, "g-repartition")
		kafkatest.Must(t, err)
		_, err = adm.CreatePartitions(b.Context(), 1, "g-repartition")
		kafkatest.Must(t, err)
		kafkatest.Has(t, examined(), "broken partitions of g-repartition: 3, and 2 of g-keys", "warning g-repartition retention.ms: 1m0s", "broken g-repartition cleanup.policy: compact,delete")
	})
}
