package kafkaio

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/semel-dev/semel"
)

// refused checks that a Transactor ends with an error that says this.
func (b *bubble) refused(opts TransactorOptions, want string) {
	b.Helper()
	p := b.start(opts)
	if !within(time.Minute, func() bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	}) {
		b.Errorf("it runs, want %q", want)
		p.stop()
		return
	}
	if p.err == nil || !strings.Contains(p.err.Error(), want) || !errors.Is(p.err, semel.ErrInvalidRequest) {
		b.Errorf("it ended with %v, want %q", p.err, want)
	}
}

func TestRepartitionTopicsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setUp func(b *bubble, opts *TransactorOptions)
		want  string
	}{
		"more partitions than the keys": {func(b *bubble, _ *TransactorOptions) {
			must(b.T, b.cluster.CreateTopic("g-repartition", 4, nil))
			must(b.T, b.cluster.CreateTopic("g-keys", 2, nil))
		}, "has 4 partitions, and the keys in g-keys were remembered with 2"},
		"other than wanted": {func(b *bubble, opts *TransactorOptions) {
			must(b.T, b.cluster.CreateTopic("g-repartition", 4, nil))
			opts.Repartition = &Repartition{Partitions: 3}
		}, "has 4 partitions, and 3 are wanted"},
		"compacted": {func(b *bubble, _ *TransactorOptions) {
			must(b.T, b.cluster.CreateTopic("g-repartition", 2, map[string]string{"cleanup.policy": "compact"}))
		}, "of the records of one id all but the last would be lost"},
		"compacted, which the brokers do not tell yet": {func(b *bubble, _ *TransactorOptions) {
			must(b.T, b.cluster.CreateTopic("g-repartition", 2, map[string]string{"cleanup.policy": "compact"}))
			b.hide("g-repartition", kerr.UnknownTopicOrPartition, 2)
		}, "of the records of one id all but the last would be lost"},
		"used without the stage before": {func(b *bubble, opts *TransactorOptions) {
			without := *opts
			without.Repartition, without.SkipSample = nil, true
			p := b.start(without)
			b.write(scattered(0, 5, 2)...)
			p.wait(10, settled)
			p.stop()
		}, "group g has read in without a repartition stage"},
		"used with the stage before": {func(b *bubble, opts *TransactorOptions) {
			p := b.start(*opts)
			b.write(scattered(0, 5, 2)...)
			p.wait(10, settled)
			p.stop()
			opts.Repartition = nil
		}, "group g-repartition has copied in for a repartition stage"},
		"grown": {func(b *bubble, opts *TransactorOptions) {
			p := b.start(*opts)
			b.write(scattered(0, 5, 2)...)
			p.wait(10, settled)
			_, err := kadm.NewClient(b.client).CreatePartitions(b.Context(), 2, "g-repartition")
			must(b.T, err)
			b.write(scattered(3, 5, 2)...)
			pause(b.Context(), 10*time.Minute) // it knows by then, and ends
			p.cancel()
			if <-p.done; p.err == nil || !strings.Contains(p.err.Error(), "has 4 partitions, and the keys in g-keys were remembered with 2") {
				b.Errorf("it ended with %v", p.err)
			}
			for _, part := range b.cluster.PartitionInfos("g-repartition")[2:] {
				if part.HighWatermark > 0 {
					b.Errorf("something was copied to the new partition %d", part.Partition)
				}
			}
		}, "has 4 partitions, and the keys in g-keys were remembered with 2"},
		"gone": {func(b *bubble, opts *TransactorOptions) {
			p := b.start(*opts)
			b.write(scattered(0, 5, 2)...)
			p.wait(10, settled)
			p.stop()
			_, err := kadm.NewClient(b.client).DeleteTopics(b.Context(), "g-repartition")
			must(b.T, err)
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
		b.write(scattered(0, 5, 2)...)
		opts := b.repartitioned()
		opts.Repartition = nil
		b.refused(opts, "repartition: {} of the source")
		opts.Repartition = &Repartition{Partitions: 5}
		p := b.start(opts)
		p.wait(10, settled)
		p.stop()
		b.eachOnce(5)
	})
}

// TestUnreadCopiesThatAreGoneEndTheProgram deletes records between the stages
// that nobody has read.
func TestUnreadCopiesThatAreGoneEndTheProgram(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.repartitioned()
		p := b.start(opts)
		b.write(scattered(0, 5, 1)...)
		p.wait(10, settled)
		p.stop()
		// Copies that come while nobody decides, as it were.
		end := b.cluster.PartitionInfos("g-repartition")[0].HighWatermark
		for _, r := range scattered(5, 1, 1) {
			r.Topic = "g-repartition"
			b.write(r)
		}
		upTo := kadm.Offsets{}
		upTo.AddOffset("g-repartition", 0, end+1, -1)
		_, err := kadm.NewClient(b.client).DeleteRecords(b.Context(), upTo)
		must(t, err)
		p = b.start(opts)
		<-p.done
		if p.err == nil || !errors.Is(p.err, errOutOfRange) || !strings.Contains(p.err.Error(), "records were lost before they were read") {
			t.Errorf("it ended with %v", p.err)
		}
	})
}

func TestTheTopicBetweenTheStagesIsExamined(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.repartitioned()
		tr, err := NewTransactor(&opts)
		must(t, err)
		found := func() string {
			t.Helper()
			list, err := tr.Examine(b.Context())
			must(t, err)
			more, err := Examine(b.Context(), b.reach(), &ExamineOptions{
				Group: "g", Inputs: []string{"in"}, Output: "out", Changelogs: []string{"g-keys"}, Repartition: "g-repartition", Transactional: true, Window: time.Hour,
			})
			must(t, err)
			var text []string
			for i, f := range append(list, more...) {
				text = append(text, fmt.Sprintf("%v %s: %s (%v)", i < len(list), f.Subject, f.Found, f.Severity))
			}
			return strings.Join(text, "\n")
		}
		says := func(text string, want ...string) {
			t.Helper()
			for _, w := range want {
				for _, from := range []bool{true, false} {
					if line := fmt.Sprint(from, " ", w); !strings.Contains(text, line) {
						t.Errorf("nothing says %q:\n%s", line, text)
					}
				}
			}
		}
		says(found(), "g-repartition: is not there yet (notice)")
		p := b.start(opts)
		b.write(scattered(0, 5, 2)...)
		p.wait(10, settled)
		text := found()
		says(text, "partitions of g-repartition: 2, and 2 of g-keys (fine)", "g-repartition retention.ms: for ever (fine)")
		for _, want := range []string{"group g: Stable, 1 members (fine)", "group g-repartition: Stable, 1 members (fine)"} {
			if !strings.Contains(text, want) {
				t.Errorf("nothing says %q:\n%s", want, text)
			}
		}
		p.stop()
		adm := kadm.NewClient(b.client)
		_, err = adm.AlterTopicConfigs(b.Context(), []kadm.AlterConfig{
			{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("60000")}, {Op: kadm.SetConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact,delete")},
		}, "g-repartition")
		must(t, err)
		_, err = adm.CreatePartitions(b.Context(), 1, "g-repartition")
		must(t, err)
		says(found(), "partitions of g-repartition: 3, and 2 of g-keys (broken)", "g-repartition retention.ms: 1m0s (warning)", "g-repartition cleanup.policy: compact,delete (broken)")
	})
}

func TestRepartitionOptionsAreChecked(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.repartitioned()
		opts.Repartition = &Repartition{Topic: "out", Partitions: -1}
		opts.Redo = true
		_, err := NewTransactor(&opts)
		for _, want := range []string{"Repartition.Topic: out is another topic", "Repartition.Partitions: -1 is below 0", "Redo: with Repartition"} {
			if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, semel.ErrInvalidRequest) {
				t.Errorf("the error is %v, want %q", err, want)
			}
		}
	})
}

// TestMembersOfBothStagesComeAndGo lets programs join, leave and die at random.
func TestMembersOfBothStagesComeAndGo(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(newSeed(t), 0))
	inRealTime(t, 4, func(b *bubble) {
		write := func(from, n int) { b.write(scattered(from, n, 4)...) }
		b.eachOnce(b.comeAndGo(random, 25, []string{"", ""}, b.repartitioned, write, b.through))
	}, kfake.NumBrokers(3))
}
