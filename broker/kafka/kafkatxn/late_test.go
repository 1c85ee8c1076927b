package kafkatxn

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestALateRecordIsDeliveredWhereItIsTo has no place to put records aside.
func TestALateRecordIsDeliveredWhereItIsTo(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Window, opts.EventTime = time.Hour, &EventTime{Grace: 10 * time.Minute, DeliverLate: true}
		opts.Key.OnMissing, opts.Parked = pipeline.MissingDrop, ""
		base := time.Now().Add(-48 * time.Hour).Truncate(time.Hour)
		late, duplicates := 0, 0
		run := func(want string, sent ...string) { // each is a key and a minute
			t.Helper()
			p := b.start(opts)
			for _, s := range sent {
				minute, err := strconv.Atoi(s[1:])
				kafkatest.Must(t, err)
				r := kafkatest.Record(0, s[:1], s[1:])
				r.Timestamp = base.Add(time.Duration(minute) * time.Minute)
				b.Write(r)
			}
			p.Wait(len(sent), kafkatest.Settled)
			p.Stop()
			late += p.Events.Decisions(semel.Late)
			duplicates += p.Events.Decisions(semel.Duplicate)
			var got []string
			for _, r := range b.Read("out") {
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
