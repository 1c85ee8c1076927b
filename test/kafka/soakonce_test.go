package kafka

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/semel-dev/semel/test/services"
)

// once is the pipeline from Kafka to Kafka of a soak. It begins again, with topics
// of its own and all of the input, where Kafka lost markers of its transactions
// and something is therefore missing.
type once struct {
	begun   int // how often it began again
	group   string
	outputs *tally
}

func (o *once) out() string       { return o.group + "-out" }
func (o *once) parked() string    { return o.group + "-parked" }
func (o *once) changelog() string { return o.group + "-keys" }

// mostBegun is how often the pipeline may begin again. A run in which Kafka lost
// more says little.
const mostBegun = 10

// beginOnce makes the topics of the pipeline and configures both programs, which
// do not run.
func (s *soak) beginOnce(begun int) {
	s.t.Helper()
	o := &once{begun: begun, group: "once"}
	if begun > 0 {
		o.group += strconv.Itoa(begun + 1)
	}
	created, err := kadm.NewClient(s.feed.client).CreateTopics(s.ctx, 4, 1, nil, o.out(), o.parked())
	must(s.t, err)
	must(s.t, created.Error())
	o.outputs = newTally(s.t, s.servers["broker"].Addr(), o.out(), o.parked())
	s.once = o
	for i, d := range []*daemon{s.steady, s.other} {
		config := fmt.Sprintf(soakConfig, s.servers["cache"].URL(), s.servers["database"].URL(), s.servers["broker"].Addr(), s.receiver, i, o.group, callsInFlight)
		must(s.t, os.WriteFile(d.config, []byte(config), 0o600))
	}
}

// settleOnce waits until the pipeline has committed all of the input and has no
// transaction open.
func (s *soak) settleOnce() {
	s.t.Helper()
	for {
		w := s.unsettled(settleFor)
		if w == nil || !s.redo(w) {
			return
		}
	}
}

// compareOnce compares what the pipeline wrote.
func (s *soak) compareOnce() {
	s.t.Helper()
	for {
		w := s.unsettled(settleFor)
		if w == nil {
			w = s.difference()
		}
		if w == nil || !s.redo(w) {
			return
		}
	}
}

// wrong is what is wrong with the pipeline: it does not commit all of the input,
// or its outputs are not as they must be.
type wrong struct {
	text        string
	unsettled   bool
	lost        []string // bodies
	twice, more int
}

func (s *soak) unsettled(most time.Duration) *wrong {
	adm := kadm.NewClient(s.feed.client)
	w := &wrong{text: "the pipeline within Kafka did not commit all of the input, or leaves a transaction open", unsettled: true}
	began, settled := time.Now(), false
	within(most, func() bool {
		settled = isSettled(s.ctx, adm, s.once.group, "in") && noneOpen(s.ctx, adm)
		return settled || time.Since(began) > time.Minute && s.excused(w) != ""
	})
	if settled {
		return nil
	}
	return w
}

// noneOpen reports whether no transaction is open and none waits for its markers,
// which Kafka may lose when it ends.
func noneOpen(ctx context.Context, adm *kadm.Client) bool {
	list, err := adm.ListTransactions(ctx, nil, []string{"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
	return err == nil && len(list) == 0
}

func (s *soak) difference() *wrong {
	s.t.Helper()
	out := s.once.outputs.of(s.once.out(), len(s.feed.amounts)+s.refused)
	for n := range s.feed.amounts {
		out.want(s.feed.body(n))
	}
	for n := range s.refused {
		out.want(s.refusedBody(n))
	}
	parked := s.once.outputs.of(s.once.parked(), s.missing)
	for n := range s.missing {
		parked.want(fmt.Sprintf(`{"missing":%d}`, n))
	}
	w := &wrong{lost: slices.Concat(out.lost, parked.lost), twice: out.twice + parked.twice, more: out.more() + parked.more()}
	if len(w.lost)+w.twice+w.more == 0 {
		return nil
	}
	w.text = fmt.Sprintf("%v; %v", out, parked)
	return w
}

// redo has the pipeline begin again where Kafka itself explains what is wrong.
// Otherwise the test fails, and it returns false.
func (s *soak) redo(w *wrong) bool {
	s.t.Helper()
	why := s.excused(w)
	if why == "" || s.once.begun == mostBegun {
		s.t.Errorf("%s (Kafka lost markers: %q)", w.text, s.lostMarkers())
		return false
	}
	s.t.Logf("%s %s; but Kafka lost markers: %s. All of the input goes to other topics", time.Now().Format("15:04:05.000"), w.text, why)
	s.beginAgain()
	return true
}

func (s *soak) beginAgain() {
	s.t.Helper()
	for _, d := range []*daemon{s.steady, s.other} {
		d.end(s.t, syscall.SIGKILL)
		s.mayRepeat += mayRepeat("kill-program", 1)
	}
	s.beginOnce(s.once.begun + 1)
	s.lives, s.samples = append(s.lives, s.samples), nil
	for _, d := range []*daemon{s.steady, s.other} {
		d.start(s.t)
	}
}

// lostMarkers returns the partitions of the transactions of the pipeline that
// Kafka wrote no marker to.
func (s *soak) lostMarkers() (partitions []string) {
	s.t.Helper()
	list, err := services.LostMarkers(s.servers["broker"])
	must(s.t, err)
	for _, lost := range list {
		if strings.HasPrefix(lost.Transaction, s.once.group+"/") {
			partitions = append(partitions, lost.Partitions...)
		}
	}
	return partitions
}

// excused returns the partitions whose lost markers explain all that is wrong, or
// nothing. A message is missing for want of a marker only if it is in one of these
// partitions, where a reader of uncommitted records finds it. Without a marker
// of the offsets or of the keys the pipeline cannot continue, and without one of the
// keys it may not know a key. Nothing explains a message that was never written.
func (s *soak) excused(w *wrong) string {
	s.t.Helper()
	lost := s.lostMarkers()
	of := func(topic string) (numbers []int32) {
		for _, name := range lost {
			if text, ok := strings.CutPrefix(name, topic+"-"); ok {
				n, err := strconv.ParseInt(text, 10, 32)
				must(s.t, err)
				numbers = append(numbers, int32(n))
			}
		}
		return numbers
	}
	keys := len(of(s.once.changelog())) > 0
	switch {
	case len(lost) == 0 || w.more > 0 || w.twice > 0 && !keys || w.unsettled && !keys && len(of("__consumer_offsets")) == 0:
		return ""
	case len(w.lost) > 0:
		found := map[string]int32{}
		for _, topic := range []string{s.once.out(), s.once.parked()} {
			maps.Copy(found, uncommitted(s.ctx, s.t, s.servers["broker"].Addr(), topic, of(topic)...))
		}
		if slices.ContainsFunc(w.lost, func(body string) bool { _, ok := found[body]; return !ok }) {
			return ""
		}
	}
	return strings.Join(lost, ", ")
}

// longestLife returns the samples of the program that lived longest.
func (s *soak) longestLife() (longest []sample) {
	for _, life := range append(s.lives, s.samples) {
		if len(life) > len(longest) {
			longest = life
		}
	}
	return longest
}

// beganAgain says how often Kafka spoiled the pipeline.
func (s *soak) beganAgain(t *testing.T) {
	t.Helper()
	list, err := services.LostMarkers(s.servers["broker"])
	must(t, err)
	t.Logf("Kafka lost markers of %d transactions, for which the pipeline within Kafka began again %d times", len(list), s.once.begun)
}
