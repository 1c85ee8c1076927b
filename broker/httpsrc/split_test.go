package httpsrc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func split(t testing.TB, text string) *Split {
	t.Helper()
	s, err := ParseSplit(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestABodyIsDividedIntoMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ split, body, want, err string }{
		{"array", `[{"id":1}, {"id": 2} ,[3],"4",null]`, `{"id":1}|{"id": 2}|[3]|"4"|null`, ""},
		{"array", " [\n1\n,\t2 ]\r\n", "1|2", ""},
		{"array", `[]`, "", ""},
		{"array", `{"id":[1]}`, `{"id":[1]}`, ""},
		{"array", `[{"id":1},{"id":2}`, "", "the body is not JSON: "},
		{"array", `[{"id":1}] [2]`, "", "the body is not JSON: "},
		{"array", `[{"id":1},]`, "", "the body is not JSON: "},
		{"array", "", "", "the body is not JSON: "},
		{"array", "id=1", "", "the body is not JSON: "},
		{"lines", "{\"id\":1}\n{\"id\":2}\n", `{"id":1}|{"id":2}`, ""},
		{"lines", "\ufeffa\r\n\r\n  \n b \nc", "a| b |c", ""},
		{"lines", "{\"id\":1}\n{\"id\":\n{\"id\":3}", `{"id":1}|{"id":|{"id":3}`, ""},
		{"lines", "", "", ""},
		{"lines", "\n\n", "", ""},
		{".a.b", `{"a":{"b":[1,2],"c":[3]}}`, "1|2", ""},
		{".a.b", `{"a":{"b":[0]},"a":{"b":[1,2]}}`, "", `the body has "a" twice`},
		{".a.b", `{"x":1,"x":2,"a":{"b":[0],"\u0062":[1]}}`, "", `the body has "b" twice`},
		{".a.b", ` {"x":1,"x":2,"\u0061":{"b":[0],"c":{"b":1},"c":0}}`, "0", ""},
		{".[0].list", `[{"list":[{"x":"]"},2]}]`, `{"x":"]"}|2`, ""},
		{".events", `{"events":[]}`, "", ""},
		{".events", `{"events":{"id":1}}`, "", ".events is no array, but object"},
		{".events", `{"events":null}`, "", ".events is no array, but null"},
		{".events", `{"event":[1],"id":2}`, "", ".events is missing: it has event, id: did you mean .event?"},
		{".events", `[1]`, "", ".events is missing: . is not an object"},
		{".events", `{"events":[1]`, "", "the body is not JSON: "},
	} {
		list, err := split(t, c.split).of([]byte(c.body))
		if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s of %q: %v, want %q", c.split, c.body, err, c.err)
			continue
		}
		var got []string
		for err == nil {
			event, ok := list.next()
			if !ok {
				break
			}
			got = append(got, string(event))
		}
		if strings.Join(got, "|") != c.want || list.count != len(got) {
			t.Errorf("%s of %q: %d messages, %q, want %q", c.split, c.body, list.count, got, c.want)
		}
	}
	for _, text := range []string{"", ".", "events", "list", ".a[", "array "} {
		if s, err := ParseSplit(text); err == nil {
			t.Errorf("%q is %v", text, s)
		}
	}
}

// FuzzSplit compares the elements of an array with those that encoding/json finds.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{`[1,"]",{"a":[2]}]`, `[ ]`, `[[],{}]`, `{"a":1}`, `["\"",1]`} {
		f.Add([]byte(seed))
	}
	array, err := ParseSplit("array")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		list, err := array.of(body)
		if (err == nil) != json.Valid(body) {
			t.Fatalf("%q: %v", body, err)
		}
		var want []json.RawMessage
		if err != nil || json.Unmarshal(body, &want) != nil || want == nil {
			return
		}
		var got []json.RawMessage
		for event, ok := list.next(); ok; event, ok = list.next() {
			got = append(got, event)
		}
		if !slices.EqualFunc(got, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) || list.count != len(got) {
			t.Fatalf("%q: %q, want %q", body, got, want)
		}
	})
}

// fate decides the outcome of a message by its body.
func fate(it *pipeline.Item) (back bool) {
	switch body := string(it.Message.Body); body[1] {
	case 'f':
		it.Decision = semel.Fresh
	case 'd':
		it.Decision = semel.Duplicate
	case 'p':
		it.Parked, it.Err = pipeline.ReasonAttempts, errors.New("refused")
	case 'x':
		it.Decision, it.Err = semel.Late, semel.ErrLate
	case 'g':
		it.Decision, it.Result = semel.Duplicate, semel.Result{Kind: semel.Failed}
	case 'h':
		it.Decision = semel.InFlight
		return true
	default:
		return true
	}
	return false
}

// settleAll reads a source and settles its messages, in an order of its own, until stop is called.
func settleAll(t *testing.T, s *Source) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			items, err := s.Read(ctx)
			if err != nil {
				return
			}
			slices.Reverse(items)
			for _, it := range items {
				one := []*pipeline.Item{it}
				if fate(it) {
					err = s.Return(ctx, one, 3*time.Second)
				} else {
					err = s.Ack(ctx, one)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

func TestAnswerCountsTheMessagesOfARequest(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Split: split(t, "array")})
	defer settleAll(t, s)()
	for _, c := range []struct {
		body     string
		status   int
		decision string
		want     string
	}{
		{`["f1","f2","f3"]`, 200, "fresh", `{"messages":3,"fresh":3,"duplicate":0,"parked":0,"dropped":0,"unsettled":0,"in_flight":0}`},
		{`["d","d"]`, 200, "duplicate", `{"messages":2,"fresh":0,"duplicate":2,"parked":0,"dropped":0,"unsettled":0,"in_flight":0}`},
		{`["f","d","x"]`, 200, "", `{"messages":3,"fresh":1,"duplicate":1,"parked":0,"dropped":1,"unsettled":0,"in_flight":0}`},
		{`["f","d","p"]`, 202, "", `{"messages":3,"fresh":1,"duplicate":1,"parked":1,"dropped":0,"unsettled":0,"in_flight":0}`},
		{`["p","p"]`, 202, "parked", `{"messages":2,"fresh":0,"duplicate":0,"parked":2,"dropped":0,"unsettled":0,"in_flight":0}`},
		{`["x","g"]`, 422, "dropped", `{"messages":2,"fresh":0,"duplicate":0,"parked":0,"dropped":2,"unsettled":0,"in_flight":0}`},
		{`["f","h","p"]`, 503, "", `{"messages":3,"fresh":1,"duplicate":0,"parked":1,"dropped":0,"unsettled":1,"in_flight":1}`},
		{`["h"]`, 503, "in_flight", `{"messages":1,"fresh":0,"duplicate":0,"parked":0,"dropped":0,"unsettled":1,"in_flight":1}`},
		{`["f","h","?"]`, 503, "", `{"messages":3,"fresh":1,"duplicate":0,"parked":0,"dropped":0,"unsettled":2,"in_flight":1}`},
		{`[]`, 200, "", `{"messages":0,"fresh":0,"duplicate":0,"parked":0,"dropped":0,"unsettled":0,"in_flight":0}`},
		{`"f"`, 200, "fresh", `{"messages":1,"fresh":1,"duplicate":0,"parked":0,"dropped":0,"unsettled":0,"in_flight":0}`},
		{`["f"`, 400, "", `the messages of the request cannot be found: the body is not JSON: the document ends too early at byte 4`},
	} {
		resp, body := post(t, s, c.body)
		if resp.StatusCode != c.status || resp.Header.Get(decisionHeader) != c.decision || strings.TrimSpace(body) != c.want {
			t.Errorf("%s: %d %q %s, want %d %q %s", c.body, resp.StatusCode, resp.Header.Get(decisionHeader), body, c.status, c.decision, c.want)
		}
		if after := resp.Header.Get("Retry-After"); (after == "3") != (c.status == 503) {
			t.Errorf("%s: Retry-After: %q", c.body, after)
		}
		if kind := resp.Header.Get("Content-Type"); (kind == jsonType) != (c.status != 400) {
			t.Errorf("%s: Content-Type: %q", c.body, kind)
		}
	}
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held of requests that are answered", n)
	}
}

// A request with many messages takes the memory of its body, and each message only while it is in the pipeline.
func TestMessagesOfARequestAreMadeWhenTheyAreRead(t *testing.T) {
	t.Parallel()
	const n = mostMessages
	s := open(t, Options{Split: split(t, ".e"), MaxBody: 1 << 20, MaxBytes: 1 << 20, Wait: time.Minute})
	body := `{"e":[` + strings.Repeat("1,", n-1) + `1]}`
	var sending sync.WaitGroup
	sending.Go(func() {
		if resp, text := post(t, s, body); resp.StatusCode != 200 || !strings.HasPrefix(text, fmt.Sprintf(`{"messages":%d,"fresh":%d,`, n, n)) {
			t.Errorf("%s %s", resp.Status, text)
		}
	})
	seen := map[int64]bool{}
	for len(seen) < n {
		items, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if held := s.held.Load(); len(items) > mostRead || held > int64(len(body))+2000 {
			t.Fatalf("%d items were read, %d bytes are held of a body of %d", len(items), held, len(body))
		}
		for _, it := range items {
			seen[it.Message.Origin.Offset] = true
			it.Decision = semel.Fresh
		}
		if err := s.Ack(t.Context(), items); err != nil {
			t.Fatal(err)
		}
	}
	sending.Wait()
}

// A request ends where a Read ends, and no other one is there.
func TestReadWaitsBehindARequestThatFillsIt(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Split: split(t, "lines"), Wait: time.Minute})
	var sending sync.WaitGroup
	sending.Go(func() { post(t, s, strings.Repeat("m\n", mostRead)) })
	items, err := s.Read(t.Context())
	if err != nil || len(items) != mostRead {
		t.Fatalf("%d items, %v", len(items), err)
	}
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	sending.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if more, err := s.Read(ended); len(more) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d items, %v, want the error of the context", len(more), err)
	}
}

// The messages that were not read go back too.
func TestCloseAsksForAHalfReadRequestAgain(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Split: split(t, "lines"), Wait: time.Minute})
	var sending sync.WaitGroup
	sending.Go(func() {
		resp, err := http.Post(address(s), "application/x-ndjson", strings.NewReader(strings.Repeat("m\n", 1000)))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 503 {
			t.Errorf("%s, %v, want 503", resp.Status, err)
		}
	})
	items, err := s.Read(t.Context())
	if err != nil || len(items) != mostRead {
		t.Fatalf("%d items, %v", len(items), err)
	}
	if err := s.Ack(t.Context(), items[:50]); err != nil {
		t.Fatal(err)
	}
	if err := s.Return(t.Context(), items[50:], 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	sending.Wait()
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held after the end", n)
	}
}

// A body of a few bytes could otherwise be parked many times with all headers.
func TestARequestHasABoundedNumberOfMessages(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"array": "[" + strings.Repeat("1,", mostMessages-1) + "1]", "lines": strings.Repeat("1\n", mostMessages)} {
		s := split(t, name)
		if found, err := s.of([]byte(body)); err != nil || found.count != mostMessages {
			t.Errorf("%s: %d messages, %v", name, found.count, err)
		}
		source := open(t, Options{Split: s})
		resp, message := send(t, source, http.Header{}, []byte(strings.Replace(body, "1", map[string]string{"array": "1,1", "lines": "1\n1"}[name], 1)), false)
		if resp.StatusCode != http.StatusRequestEntityTooLarge || message != nil || source.held.Load() != 0 {
			t.Errorf("%s: %s with too many, %d bytes held", name, resp.Status, source.held.Load())
		}
	}
}
