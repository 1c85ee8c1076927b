package kafkaio

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestWhatIsRedrivenIsNeverLate has a record put aside, which comes back when it is
// older than the newest by more than the window.
func TestWhatIsRedrivenIsNeverLate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(o *TransactorOptions){
		"drop":    func(o *TransactorOptions) { o.OnLate = pipeline.Drop },
		"park":    func(*TransactorOptions) {},
		"deliver": func(o *TransactorOptions) { o.DeliverLate = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.EventTime, opts.Window, opts.Transform = true, time.Hour, failing
				change(&opts)
				base := time.Now().Add(-48 * time.Hour)
				bad, good := record(0, "bad", "v"), record(0, "good", "v")
				bad.Timestamp, good.Timestamp = base, base.Add(2*time.Hour)
				b.write(bad, good)
				p := b.start(opts)
				p.wait(2, settled)
				p.stop()

				letters := b.topicLot(opts, nil)
				list := b.listed(letters)
				b.redrive(letters, list...)
				twice := record(0, "bad", "v")
				twice.Timestamp, twice.Headers = base, []kgo.RecordHeader{{Key: pipeline.RedriveHeader, Value: []byte("1")}}
				b.write(twice)
				opts.Transform = nil
				p = b.start(opts)
				p.wait(2, settled)
				p.stop()
				if got := keysOf(b.read("out")); strings.Join(got, " ") != "bad good" {
					t.Errorf("outputs %v, want each once", got)
				}
				if late, twice := p.events.decisions(semel.Late), p.events.decisions(semel.Duplicate); late != 0 || twice != 1 {
					t.Errorf("%d late and %d duplicates, want none and the second copy", late, twice)
				}
				if left := b.listed(letters); len(left) != 0 {
					t.Errorf("%d are put aside", len(left))
				}
			})
		})
	}
}

// TestALateRecordIsDeliveredWhereItIsTo has no place to put records aside.
func TestALateRecordIsDeliveredWhereItIsTo(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.EventTime, opts.DeliverLate = true, true
		opts.Window, opts.Grace = time.Hour, 10*time.Minute
		opts.OnMissing, opts.Parked = pipeline.MissingDrop, ""
		base := time.Now().Add(-48 * time.Hour).Truncate(time.Hour)
		late, duplicates := 0, 0
		run := func(want string, sent ...string) { // each is a key and a minute
			t.Helper()
			p := b.start(opts)
			for _, s := range sent {
				minute, err := strconv.Atoi(s[1:])
				must(t, err)
				r := record(0, s[:1], s[1:])
				r.Timestamp = base.Add(time.Duration(minute) * time.Minute)
				b.write(r)
			}
			p.wait(len(sent), settled)
			p.stop()
			late += p.events.decisions(semel.Late)
			duplicates += p.events.decisions(semel.Duplicate)
			var got []string
			for _, r := range b.read("out") {
				got = append(got, string(r.Key)+string(r.Value))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != want {
				t.Errorf("outputs %v, want %s", got, want)
			}
		}
		run("a100 c80", "a100", "c80", "c80")                                    // late, and remembered
		run("a100 c80 d81", "c80", "d81")                                        // after a restart too
		run("a100 a200 c80 c80 d81 e150", "a200", "c80", "e150", "e150", "e150") // until its window and the grace are over
		if late != 4 || duplicates != 4 {
			t.Errorf("%d late and %d duplicates, want 4 and 4", late, duplicates)
		}
	})
}
