package idemcheck

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/retry"
)

// The items about calls of tools: a profile with MCP has these instead of the others.

// mcpItems returns the items in their order.
func mcpItems() []item {
	must := func(n int, source, name string, run func(calls, context.Context)) item {
		return item{Item{Number: n, Name: name, Source: source, Demanded: true}, func(c *check, ctx context.Context) { run(calls{c}, ctx) }, ""}
	}
	return []item{
		must(63, protocol, "a repeated call gets the first result under its own id", calls.replayedID),
		must(64, choice, "a key in the header is the one in _meta", calls.twoCarriers),
		must(65, choice, "other arguments under a key get a JSON-RPC error", calls.callMismatch),
		must(66, choice, "a repetition in flight gets a JSON-RPC error", calls.callInFlight),
		must(67, protocol, "session, progress token and trace of a call may differ", calls.callVaries),
		must(68, protocol, "progress comes before the result, which is kept", calls.progress),
		must(69, choice, "the result of a tool that failed is kept", calls.failedTool),
		must(70, protocol, "an error before the tool runs frees the key", calls.refusedCall),
		must(71, protocol, "a session that has ended frees the key", calls.endedSession),
		must(72, protocol, "other methods and notifications run each time", calls.otherMethods),
		must(73, protocol, "a batch does not run a call twice", calls.batch),
		must(74, choice, "a call without a key runs each time", calls.callWithoutKey),
		must(75, choice, "100 concurrent calls take effect once", calls.concurrentCalls),
		must(76, choice, "after a broken stream nothing runs again", calls.brokenStream),
		must(77, choice, "a call continues when its client leaves", calls.callDisconnect),
		must(78, security, "callers do not share the keys of calls", calls.callers),
	}
}

// calls is the check of an item about calls.
type calls struct{ *check }

// call is a call of a tool.
type call struct {
	id     string // as JSON
	key    string
	amount int
	does   string
	method string // tools/call
	meta   string // more members of _meta, each with a comma before it
	header http.Header
	as     http.Header
	batch  bool
	soon   bool // the answer must come although the first call has none
	target int
}

// text returns the message of a call.
func (k call) text() string {
	meta := `"progressToken":` + k.id + k.meta
	if k.key != "" {
		meta += `,"idempotencyKey":` + string(quoted(k.key))
	}
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{"name":"pay","arguments":{"amount":%d},"_meta":{%s}}}`, k.id, cmp.Or(k.method, "tools/call"), k.amount, meta)
	if k.batch {
		return "[" + text + "]"
	}
	return text
}

func quoted(text string) []byte {
	out, err := json.Marshal(text)
	if err != nil {
		panic(err) // it is a string
	}
	return out
}

// request returns the request of a call.
func (k call) request() request {
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	for name, lines := range k.header {
		header[name] = lines
	}
	return request{target: k.target, body: k.text(), does: k.does, header: header, as: k.as, path: "/mcp", soon: k.soon}
}

// rpc is the answer to a call.
type rpc struct {
	*reply
	ID     json.RawMessage `json:"id"`
	Result struct {
		Content []struct{ Text string }
		IsError bool
	} `json:"result"`
	Error *struct {
		Code int
		Data struct{ Type string }
	} `json:"error"`
}

// rpcOf reads the response in a reply: its body, or the last message of a stream.
func rpcOf(got *reply) *rpc {
	out, text := &rpc{reply: got}, got.body
	if strings.HasPrefix(got.header.Get("Content-Type"), "text/event-stream") {
		text = nil
		for line := range bytes.Lines(got.body) {
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && !bytes.Contains(data, []byte(`"method"`)) {
				text = data
			}
		}
	}
	_ = json.Unmarshal(text, out) // what is no response has no members
	return out
}

// text returns the content of a result.
func (r *rpc) text() string {
	if len(r.Result.Content) == 0 {
		return ""
	}
	return r.Result.Content[0].Text
}

// String describes an answer in a few words.
func (r *rpc) String() string {
	if r.Error != nil {
		return fmt.Sprintf("%d with the JSON-RPC error %d %s, id %s", r.status, r.Error.Code, r.Error.Data.Type, r.ID)
	}
	return r.reply.String()
}

// call sends a call and reads the answer.
func (c calls) call(ctx context.Context, k call) *rpc { return rpcOf(c.send(ctx, k.request())) }

// newCall returns a call whose key and id no other had.
func (c calls) newCall() call {
	c.keys++
	return call{id: fmt.Sprint(c.keys), key: fmt.Sprint(c.id, "-", c.keys), amount: c.keys}
}

// results sends a call that must get this text, under its id.
func (c calls) results(ctx context.Context, k call, want string) *rpc {
	got := c.call(ctx, k)
	if got.err != nil || got.status != http.StatusOK || got.text() != want || string(got.ID) != k.id {
		c.missf("a call with the id %s got %s with the id %s, want the result %q", k.id, got, got.ID, want)
	}
	return got
}

// refuses sends a call that must get a JSON-RPC error under its id, and must not run. Status
// 200, because clients look for such an error in no other answer.
func (c calls) refuses(ctx context.Context, k call, what string) {
	before := c.count(ctx)
	if got := c.call(ctx, k); got.Error == nil || string(got.ID) != k.id || got.status != http.StatusOK {
		c.missf("%s got %s, want 200 and a JSON-RPC error with the id %s", what, got, k.id)
	}
	c.ran(ctx, before)
}

func (c calls) replayedID(ctx context.Context) {
	k := c.newCall()
	for _, id := range []string{`7`, `"seven"`, `-3`, `9007199254740993`, `"a\"\u00e9"`, `8`} {
		k.id = id
		c.results(ctx, k, "run 1")
	}
	c.ran(ctx, 1)
}

func (c calls) twoCarriers(ctx context.Context) {
	k := c.newCall()
	c.results(ctx, k, "run 1")
	inHeader := k
	inHeader.key, inHeader.header = "", http.Header{http.CanonicalHeaderKey(c.keyHeader()): {quote(k.key)}}
	c.results(ctx, inHeader, "run 1")
	both := inHeader
	both.key = k.key + "-other"
	c.refuses(ctx, both, "a call with two keys")
}

func (c calls) callMismatch(ctx context.Context) {
	k := c.newCall()
	c.results(ctx, k, "run 1")
	other := k
	other.amount += 100
	c.refuses(ctx, other, "a call with other arguments")
	c.results(ctx, k, "run 1")
	c.ran(ctx, 1)
}

func (c calls) callInFlight(ctx context.Context) {
	k := c.newCall()
	p := c.start(ctx, k.request())
	again := k
	again.id, again.does, again.soon = `"again"`, "gate", true
	if c.Wait == 0 {
		c.refuses(ctx, again, "a repetition in flight")
	}
	if got := rpcOf(p.wait(ctx)); got.text() != "run 1" {
		c.missf("the first call got %s", got)
	}
	c.results(ctx, again, "run 1")
	c.ran(ctx, 1)
}

func (c calls) callVaries(ctx context.Context) {
	k := c.newCall()
	k.header = http.Header{"Mcp-Session-Id": {"one"}, "Mcp-Protocol-Version": {"2025-06-18"}}
	c.results(ctx, k, "run 1")
	k.id, k.meta = `"next"`, `,"traceparent":"00-1-2-01","io.modelcontextprotocol/clientInfo":{"name":"x","version":"2"}`
	k.header = http.Header{"Mcp-Session-Id": {"two"}, "Mcp-Protocol-Version": {"2025-11-25"}}
	c.results(ctx, k, "run 1")
	c.ran(ctx, 1)
}

func (c calls) progress(ctx context.Context) {
	k := c.newCall()
	k.does = "kind=events&gate"
	answer, err := c.open(ctx, k.request())
	if err != nil {
		c.missf("a call got no answer: %v", err)
		return
	}
	in := bufio.NewReader(answer.Body)
	early := ""
	for !strings.Contains(early, "notifications/progress") && err == nil {
		var line string
		line, err = in.ReadString('\n')
		early += line
	}
	if err != nil {
		c.missf("the progress of a call did not come while it ran: %v", err)
	}
	if _, err := c.ask(ctx, http.MethodPost, ""); err != nil {
		c.missf("the gate of the upstream does not open: %v", err)
	}
	rest, err := io.ReadAll(in)
	_ = answer.Body.Close() // it was read
	got := rpcOf(&reply{err: err, status: answer.StatusCode, header: answer.Header, body: rest})
	if err != nil || got.text() != "run 1" || string(got.ID) != k.id {
		c.missf("the stream of a call ended with %s", got)
	}
	k.id = `"again"`
	again := c.results(ctx, k, "run 1")
	if !strings.HasPrefix(again.header.Get("Content-Type"), "text/event-stream") {
		c.missf("the replay of a stream has the type %q", again.header.Get("Content-Type"))
	}
	c.ran(ctx, 1)
}

func (c calls) failedTool(ctx context.Context) {
	k := c.newCall()
	k.does = "tool=failed"
	for range 2 {
		if got := c.results(ctx, k, "run 1"); !got.Result.IsError {
			c.missf("the result lacks isError: %s", got)
		}
	}
	c.ran(ctx, 1)
}

func (c calls) refusedCall(ctx context.Context) {
	k := c.newCall()
	k.does = "error=-32601&first"
	if got := c.call(ctx, k); got.Error == nil || got.Error.Code != -32601 {
		c.missf("a call got %s, want the error -32601 of the service", got)
	}
	c.results(ctx, k, "run 2")
	c.results(ctx, k, "run 2")
	c.ran(ctx, 2)
}

func (c calls) endedSession(ctx context.Context) {
	k := c.newCall()
	k.does = "status=404&error=-32001&first"
	if got := c.call(ctx, k); got.status != http.StatusNotFound {
		c.missf("a call in a session that has ended got %s, want 404", got)
	}
	c.results(ctx, k, "run 2")
	c.ran(ctx, 2)
}

func (c calls) otherMethods(ctx context.Context) {
	n := 0
	for _, method := range []string{"initialize", "tools/list", "resources/read", "ping", "notifications/progress"} {
		k := c.newCall()
		k.method = method
		for range 2 {
			n++
			c.results(ctx, k, fmt.Sprint("run ", n))
		}
	}
	c.ran(ctx, n)
}

func (c calls) batch(ctx context.Context) {
	k := c.newCall()
	c.results(ctx, k, "run 1")
	k.batch = true
	if got := c.call(ctx, k); got.status == 0 {
		c.missf("a batch got %s", got)
	}
	c.ran(ctx, 1)
}

func (c calls) callWithoutKey(ctx context.Context) {
	k := c.newCall()
	k.key = ""
	c.results(ctx, k, "run 1")
	c.results(ctx, k, "run 2")
	c.ran(ctx, 2)
}

func (c calls) concurrentCalls(ctx context.Context) {
	k := c.newCall()
	k.does = "gate"
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			one := k
			one.id, one.target = fmt.Sprint(i), i%len(c.Targets)
			c.call(ctx, one)
		})
	}
	if seen, err := c.ask(ctx, http.MethodGet, "?runs=1"); err != nil || seen.Runs == 0 {
		c.missf("no call reached the upstream")
	}
	if _, err := c.ask(ctx, http.MethodPost, ""); err != nil {
		c.missf("the gate of the upstream does not open: %v", err)
	}
	all.Wait()
	c.results(ctx, k, "run 1")
	c.ran(ctx, 1)
}

func (c calls) brokenStream(ctx context.Context) {
	k := c.newCall()
	k.does = "kind=events&end=reset"
	if got := c.call(ctx, k); got.text() != "" {
		c.missf("a stream that broke off got %s", got)
	}
	if got := c.call(ctx, k); got.text() != "" {
		c.missf("after a broken stream a repetition got %s", got)
	}
	c.ran(ctx, 1)
}

func (c calls) callDisconnect(ctx context.Context) {
	k := c.newCall()
	k.does = "kind=events&gate"
	leave, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &pending{c.check, make(chan *reply, 1)}
	go func() { p.done <- c.send(leave, k.request()) }()
	if seen, err := c.ask(ctx, http.MethodGet, "?runs=1"); err != nil || seen.Runs != 1 {
		c.missf("the call did not reach the upstream")
	}
	cancel()
	p.wait(ctx)
	k.id = `"again"`
	got := c.call(ctx, k)
	for end := time.Now().Add(10 * time.Second); got.Error != nil && time.Now().Before(end); got = c.call(ctx, k) {
		_ = retry.Sleep(ctx, 50*time.Millisecond) // it may be in flight
	}
	if got.text() != "run 1" || string(got.ID) != k.id {
		c.missf("after the client had left, a repetition got %s", got)
	}
	c.ran(ctx, 1)
}

func (c calls) callers(ctx context.Context) {
	if c.Caller == nil || c.Other == nil {
		c.not = "no credentials of two callers are given"
		return
	}
	k := c.newCall()
	c.results(ctx, k, "run 1")
	k.as = c.Other
	c.results(ctx, k, "run 2")
	c.ran(ctx, 2)
}
