package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services/servicestest"
)

// waitMost is how long something may take here.
const waitMost = 40 * time.Second

// waitingOn are the topics and clients of a test in which messages of one partition wait
// for a row of an open transaction.
type waitingOn struct {
	client *kgo.Client // writes, and reads outputs
	adm    *kadm.Client
	rows   *kgo.Client
}

// waitOn creates the topics, and writes a row of the customer ann in each table. The row of
// another customer in the table moving is in an open transaction once begin is called.
func waitOn(t *testing.T, addr string) (w waitingOn, begin func(customer string)) {
	t.Helper()
	var err error
	w.client, err = kgo.NewClient(kgo.SeedBrokers(addr), kgo.UnknownTopicRetries(-1), kgo.ConsumeTopics("out-moving", "parked-moving"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	must(t, err)
	t.Cleanup(w.client.Close)
	w.rows, err = kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("rows"), kgo.TransactionTimeout(5*time.Minute))
	must(t, err)
	t.Cleanup(w.rows.Close)
	w.adm = kadm.NewClient(w.client)
	run := &crashRun{adm: w.adm}
	run.create(t, 1, nil, "in", "out-moving", "out-static", "parked-moving", "parked-static")
	run.create(t, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "moving", "static")
	w.write(t, "moving", "ann", "1")
	w.write(t, "static", "ann", "1")
	return w, func(customer string) {
		must(t, w.rows.BeginTransaction())
		must(t, w.rows.ProduceSync(t.Context(), &kgo.Record{Topic: "moving", Key: []byte(customer), Value: []byte("2")}).FirstErr())
	}
}

func (w *waitingOn) write(t *testing.T, topic, key, value string) {
	t.Helper()
	must(t, w.client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)}).FirstErr())
}

// send writes a message of a customer.
func (w *waitingOn) send(t *testing.T, number int, customer string) {
	t.Helper()
	w.write(t, "in", fmt.Sprint(number), fmt.Sprintf(`{"n":%d,"c":%q}`, number, customer))
}

// note returns the metadata of the committed offset.
func (w *waitingOn) note(t *testing.T) string {
	t.Helper()
	committed, err := w.adm.FetchOffsets(t.Context(), group+"-moving")
	if err != nil {
		return err.Error()
	}
	at, _ := committed.Lookup("in", 0)
	return at.Metadata
}

// TestMessagesThatWaitSurviveAKill has as many messages wait for a row as may, while
// another one passes. The program is killed, and the broker stops and starts again. The
// messages still wait then, since their offsets are metadata of the committed offset, and
// are joined when the row is committed.
//
// A session that restarts while the row's transaction is open reads its table only after
// it. On a busy machine a session may restart, so each try has its own transaction and
// customer. There are few tries, so this is not for -short.
func TestMessagesThatWaitSurviveAKill(t *testing.T) {
	if testing.Short() {
		t.Skip("`make test-full` kills it on a real broker; kafkatxn kills it on the broker in process")
	}
	t.Parallel()
	server := servicestest.StartKafka(t, nil)
	w, begin := waitOn(t, server.Addr())
	program := newProgram(t, server.Addr(), 0)
	program.Tables, program.Session = true, patientSession
	program.start(t)

	sent := 0
	send := func(customer string) {
		w.send(t, sent, customer)
		sent++
	}
	outputs, parked := map[int]int{}, 0
	poll := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		w.client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if r.Topic == "parked-moving" {
				parked++
				t.Logf("parked: %s, %s", r.Value, header(r, "semel-error"))
				return
			}
			var o struct {
				N, Row int
				C      string
			}
			must(t, json.Unmarshal(r.Value, &o))
			outputs[o.N]++
			want := 2
			if o.C == "ann" {
				want = 1
			}
			if o.Row != want {
				t.Errorf("message %d was joined with row %d, want %d", o.N, o.Row, want)
			}
		})
	}
	wants := func(n int) {
		t.Helper()
		if !within(waitMost, func() bool { poll(); return len(outputs) >= n }) {
			t.Fatalf("%d messages have outputs, want %d", len(outputs), n)
		}
	}
	send("ann")
	wants(1)
	const waiting, tries = 200, 5
	note := ""
	wait := func(customer string) bool {
		begin(customer)
		first := sent
		for range waiting {
			send(customer)
		}
		send("ann") // passes
		note = ""
		return within(waitMost/tries, func() bool {
			if poll(); outputs[sent-1] == 0 {
				return false
			}
			note = w.note(t)
			return strings.HasPrefix(note, fmt.Sprintf("waiting for rows: %d,%d,", first, first+1)) && strings.HasSuffix(note, fmt.Sprint(",", sent-2))
		})
	}
	for try := 1; !wait(fmt.Sprint("bob", try)); try++ {
		if t.Logf("try %d: the committed offset has the metadata %q", try, note); try == tries {
			t.Fatal("no messages wait while another one passes")
		}
		must(t, w.rows.EndTransaction(t.Context(), kgo.TryCommit))
		wants(sent)
	}

	program.end(t, syscall.SIGKILL)
	must(t, server.Stop())
	restart(t, server)
	if !within(waitMost, func() bool { return w.note(t) == note }) {
		t.Fatalf("after a restart of the broker, the committed offset has the metadata %q", w.note(t))
	}
	must(t, w.rows.EndTransaction(t.Context(), kgo.TryCommit))
	program.start(t)
	wants(sent)
	for range 2 { // what should not be there
		poll()
	}
	for n, times := range outputs {
		if times != 1 {
			t.Errorf("message %d has %d outputs", n, times)
		}
	}
	if parked > 0 {
		t.Errorf("%d messages are parked", parked)
	}
	if !within(waitMost, func() bool { return !strings.HasPrefix(w.note(t), "waiting") }) {
		t.Errorf("the committed offset still has the metadata %q", w.note(t))
	}
	program.end(t, syscall.SIGTERM)
}
