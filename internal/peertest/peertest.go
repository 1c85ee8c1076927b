// Package peertest has what tests need of peers that answer wrongly or not at all: the
// table of broker/ANSWERS.md, which says what each answer is about, and a peer that
// never answers.
package peertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Meaning is what an answer of a target means for the message that was delivered. It is
// a cell of the table in broker/ANSWERS.md.
type Meaning string

const (
	// Server: the target takes nothing now, and did not take the message. The pipeline
	// pauses and counts no attempt.
	Server Meaning = "the server; nothing was delivered"
	// ServerInDoubt is Server, but the target may have taken the message.
	ServerInDoubt Meaning = "the server; it may have been delivered"
	// Message: the target refuses this message, perhaps only now. It is retried, and
	// parked after its last attempt.
	Message Meaning = "this message; retried, then parked"
	// MessageInDoubt is Message, but the target may have taken it.
	MessageInDoubt Meaning = "this message, which may have been delivered; retried, then parked"
	// MessageForGood: the target never takes this message. It is parked.
	MessageForGood Meaning = "this message; parked"
	// Delivered: the target took the message.
	Delivered Meaning = "no failure; it was delivered"
)

// MeaningOf returns the meaning of the error of a delivery.
func MeaningOf(err error) Meaning {
	_, permanent := errors.AsType[*semel.PermanentError](err)
	_, unavailable := errors.AsType[*pipeline.UnavailableError](err)
	_, store := errors.AsType[*pipeline.StoreError](err)
	unknown := errors.Is(err, semel.ErrOutcomeUnknown)
	switch {
	case err == nil:
		return Delivered
	case permanent:
		return MessageForGood
	case (unavailable || store) && unknown:
		return ServerInDoubt
	case unavailable || store:
		return Server
	case unknown:
		return MessageInDoubt
	}
	return Message
}

// Answer is an answer of a target, and its meaning.
type Answer struct {
	// Name describes the answer in a row of the table.
	Name string
	// Means is what it means.
	Means Meaning
	// Deliver delivers a message to a target that gives this answer, and returns the error
	// of the message.
	Deliver func(t *testing.T) error
}

// Same returns a function for [Answer] that tries several answers of one meaning.
func Same(deliver ...func(t *testing.T) error) func(t *testing.T) error {
	return func(t *testing.T) error {
		first := deliver[0](t)
		for _, other := range deliver[1:] {
			if err := other(t); MeaningOf(err) != MeaningOf(first) {
				t.Errorf("%v and %v mean different things", first, err)
			}
		}
		return first
	}
}

// page has the table, seen from the package of a broker.
const page = "../../broker/ANSWERS.md"

// RunAnswers checks what each answer means, and that the rows of a kind in the table of
// broker/ANSWERS.md say the same. SEMEL_UPDATE=1 in the environment writes them.
func RunAnswers(t *testing.T, kind string, answers []Answer) {
	t.Helper()
	var rows strings.Builder
	for _, a := range answers {
		fmt.Fprintf(&rows, "| %s | %s |\n", a.Name, a.Means)
		t.Run(a.Name, func(t *testing.T) {
			if err := a.Deliver(t); MeaningOf(err) != a.Means {
				t.Errorf("it means %q, want %q: %v", MeaningOf(err), a.Means, err)
			}
		})
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- answers of "+kind+" -->\n", "<!-- end of "+kind+" -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines %q and %q", page, begin, end)
	}
	table := "\n| answer of " + kind + " | it is about |\n|---|---|\n" + rows.String() + "\n"
	switch {
	case have == table:
	case os.Getenv("SEMEL_UPDATE") != "":
		if err := os.WriteFile(page, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has another table of %s: run go test with SEMEL_UPDATE=1", page, kind)
	}
}

// DeliverOne delivers a message with the id m and this body, and returns its error.
func DeliverOne(t testing.TB, sink pipeline.Sink, body string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	it := &pipeline.Item{Partition: pipeline.NewPartition("in"), Group: 1, Attempt: 1}
	it.Message = semel.Message{ID: "m", Body: []byte(body), Time: time.Now()}
	it.Call.Key = semel.Key{Scope: "s", ID: "m"}
	sink.Deliver(ctx, []*pipeline.Item{it})
	return it.Err
}

// Silent returns the address of a peer that accepts connections, reads, and never
// answers.
func Silent(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				buffer := make([]byte, 4096)
				for err := error(nil); err == nil; {
					_, err = conn.Read(buffer)
				}
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// Within fails the test if call takes longer than most. It returns the error of call.
func Within(t testing.TB, most time.Duration, what string, call func(ctx context.Context) error) error {
	t.Helper()
	began := time.Now()
	err := call(t.Context())
	if took := time.Since(began); took > most {
		t.Errorf("%s took %v against a peer that never answers, want at most %v", what, took.Round(time.Millisecond), most)
	}
	return err
}
