package http

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/idemcheck"
)

// TestProxyPassesAllItemsOfCalls is the profile mcp of the real proxy.
func TestProxyPassesAllItemsOfCalls(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			flags := append(append(store.flags(t), steady...), "--profile", "mcp")
			targets := []string{newProxy(t, s.url, flags...).url}
			if store.name != "embedded" {
				targets = append(targets, newProxy(t, s.url, flags...).url)
			}
			profile, _ := httpidem.ProfileNamed("mcp")
			report, err := idemcheck.Run(t.Context(), idemcheck.Options{
				Targets: addresses(t, targets...), Probe: addresses(t, s.url)[0], Profile: profile,
				Caller: http.Header{"X-Api-Key": {"alice"}}, Other: http.Header{"X-Api-Key": {"bob"}},
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range report.Items {
				if item.Result != idemcheck.Passed {
					t.Errorf("item %d: %s: %s: %s", item.Number, item.Name, item.Result, item.Seen)
				}
			}
		})
	}
}

// bank is an MCP service whose tool pay has an effect. It answers with JSON or a stream, and
// now and then with nothing.
type bank struct {
	mu   sync.Mutex
	paid map[string]int // how often each order took effect
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Params struct{ Arguments struct{ Order string } }
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &m) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	pause := func() { within(r.Context(), time.Duration(rand.IntN(3))*time.Millisecond) }
	pause()
	b.mu.Lock()
	b.paid[m.Params.Arguments.Order]++
	n := b.paid[m.Params.Arguments.Order]
	b.mu.Unlock()
	way := rand.IntN(20)
	if way == 0 {
		panic(http.ErrAbortHandler) // the answer is lost
	}
	response := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"payment %d of %s"}]}}`, m.ID, n, m.Params.Arguments.Order)
	if way%2 == 0 {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, response) // the proxy may have left
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\n")
	_ = http.NewResponseController(w).Flush() // the proxy may have left
	if pause(); way == 1 {
		panic(http.ErrAbortHandler) // the response is lost
	}
	_, _ = io.WriteString(w, "event: message\ndata: "+response+"\n\n")
}

// said is the response to a call.
type said struct {
	ID     json.RawMessage
	Result struct{ Content []struct{ Text string } }
	Error  struct{ Data struct{ Type string } }
}

// callOnce sends a call, and reads the response. It is an error if the answer is lost.
func callOnce(ctx context.Context, proxy, order, id string) (*said, error) {
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"pay","arguments":{"order":%q},"_meta":{"progressToken":%s,"idempotencyKey":%q}}}`, id, order, id, order)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, proxy+"/mcp", strings.NewReader(message))
	if err != nil {
		return nil, err
	}
	r.GetBody = nil // the client must not repeat requests by itself
	r.Host = "tools.example.com"
	r.Header.Set("X-Api-Key", "alice")
	r.Header.Set("Mcp-Session-Id", id)
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	got := &said{}
	for line := range strings.Lines(string(body)) {
		text, isEvent := strings.CutPrefix(line, "data: ")
		if next := (said{}); (isEvent || answer.Header.Get("Content-Type") == "application/json") && json.Unmarshal([]byte(text), &next) == nil && next.ID != nil {
			*got = next
		}
	}
	if got.ID == nil {
		return nil, fmt.Errorf("%d has no response: %s", answer.StatusCode, body)
	}
	return got, nil
}

// Agents call a tool and lose answers: they leave early, the service breaks off, and the proxy
// is killed. Each repeats its call, with new ids, until it has a result or learns that the
// outcome is unknown. No call takes effect twice.
func TestNoCallOfAToolTakesEffectTwice(t *testing.T) {
	t.Parallel()
	calls, kills := 10_000, 40
	if testing.Short() {
		calls, kills = 400, 4
	}
	random := *seed
	if random == 0 {
		random = rand.Uint64()
	}
	t.Logf("-seed %d", random)
	b := &bank{paid: map[string]int{}}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	p := newProxy(t, server.URL, append(stores[0].flags(t), "--profile", "mcp")...)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 15*time.Minute, fmt.Errorf("the agents have no results after 15 minutes"))
	defer cancel()

	moments := rand.New(rand.NewPCG(random, 0))
	var at []int
	for range kills {
		at = append(at, moments.IntN(calls-workers))
	}
	slices.Sort(at)
	done := make(chan int, calls)
	var killing sync.WaitGroup
	killing.Go(func() {
		for n := range done {
			for len(at) > 0 && n >= at[0] {
				at = at[1:]
				p.kill()
				p.start(t)
			}
		}
	})
	var next, ids, lost, answered, unknown, repeated atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := next.Add(1); i <= int64(calls); i = next.Add(1) {
				order := fmt.Sprintf("order-%d", i)
				for first := true; ; first = false {
					id, trial, leave := fmt.Sprint(ids.Add(1)), ctx, context.CancelFunc(func() {})
					if first && rand.IntN(5) == 0 { // the agent gives up before the answer comes
						trial, leave = context.WithTimeout(ctx, time.Duration(rand.IntN(4000))*time.Microsecond)
					}
					got, err := callOnce(trial, p.url, order, id)
					leave()
					if ctx.Err() != nil {
						t.Errorf("%s: %v", order, context.Cause(ctx))
						return
					}
					if err != nil {
						lost.Add(1)
						within(ctx, 5*time.Millisecond)
						continue
					}
					if string(got.ID) != id {
						t.Errorf("the response to %s has the id %s", id, got.ID)
					}
					problem := got.Error.Data.Type[strings.LastIndexByte(got.Error.Data.Type, '/')+1:]
					if problem == "outcome-unknown" {
						unknown.Add(1)
					} else if len(got.Result.Content) == 0 {
						if !slices.Contains([]string{"in-flight", "store-unavailable", "upstream-down"}, problem) {
							t.Errorf("%s got %+v", order, got)
							return
						}
						within(ctx, 20*time.Millisecond)
						continue
					} else if want := "payment 1 of " + order; got.Result.Content[0].Text != want {
						t.Errorf("%s got %q", order, got.Result.Content[0].Text)
					}
					if !first {
						repeated.Add(1)
					}
					break
				}
				done <- int(answered.Add(1))
			}
		})
	}
	all.Wait()
	close(done)
	killing.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	twice := 0
	for order, n := range b.paid {
		if n > 1 {
			twice++
			t.Errorf("%s took effect %d times", order, n)
		}
	}
	if none := int64(calls) - unknown.Load(); int64(len(b.paid)) < none {
		t.Errorf("%d of %d results have no effect", none-int64(len(b.paid)), none)
	}
	if lost.Load() == 0 || repeated.Load() == 0 {
		t.Errorf("%d answers were lost, and %d calls repeated: the test tests nothing", lost.Load(), repeated.Load())
	}
	t.Logf("%d calls, %d kills, %d answers lost, %d calls repeated, %d outcomes unknown, %d took effect twice", calls, kills, lost.Load(), repeated.Load(), unknown.Load(), twice)
}
