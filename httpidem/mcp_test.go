package httpidem_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/memstore"
)

// callOf returns a call of a tool as JSON. meta are members of _meta.
func callOf(id, tool, arguments, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{%s}}}`, id, tool, arguments, meta)
}

// keyed is a member of _meta with a key.
func keyed(key string) string { return fmt.Sprintf(`"idempotencyKey":%q`, key) }

// tools is a service that answers each call with the number of its run. answer replaces that.
func tools(answer func(w http.ResponseWriter, id string, run int32)) *service {
	s := &service{}
	s.handle = func(w http.ResponseWriter, r *http.Request) {
		run := s.ran.Load()
		var m struct{ ID json.RawMessage }
		body, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(body, &m) != nil {
			m.ID = json.RawMessage("null")
		}
		if answer != nil {
			answer(w, string(m.ID), run)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": "run %d"}]}, "id": %s}`, run, m.ID)
	}
	return s
}

// mcpFronts starts a handler of the profile mcp around a service, and a proxy of it.
func mcpFronts(t *testing.T, s *service, change func(*httpidem.Options)) map[string]*httptest.Server {
	t.Helper()
	made := map[string]*httptest.Server{}
	upstream := httptest.NewServer(s)
	t.Cleanup(upstream.Close)
	for name, next := range map[string]http.Handler{"handler": s, "proxy": proxyHandler(t, upstream.URL, httpidem.ProxyOptions{})} {
		opts := named(t, "mcp")
		if change != nil {
			change(opts)
		}
		made[name] = front(t, newGuard(t, newStore(t), hold), next, opts)
	}
	return made
}

// result is the response to a call: its id, and the text of the result or the code and problem
// of the error.
type result struct {
	id, text, problem string
	code              int
}

func resultOf(t *testing.T, r *reply) result {
	t.Helper()
	text := r.body
	if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		text = nil
		for line := range bytes.Lines(r.body) {
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && !bytes.Contains(data, []byte(`"method"`)) {
				text = data
			}
		}
	}
	var m struct {
		ID     json.RawMessage
		Result struct{ Content []struct{ Text string } }
		Error  struct {
			Code int
			Data struct {
				Type       string
				RetryAfter int `json:"retry_after"`
			}
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		t.Errorf("%v: %d %s", err, r.StatusCode, r.body)
	}
	got := result{id: string(m.ID), code: m.Error.Code, problem: m.Error.Data.Type[strings.LastIndexByte(m.Error.Data.Type, '/')+1:]}
	for _, c := range m.Result.Content {
		got.text += c.Text
	}
	return got
}

// openCall sends a call, and returns the answer when its header is there.
func openCall(t *testing.T, url, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Caller", "alice")
	r.GetBody = nil // the client must not repeat requests by itself
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() }) // it may be closed
	return answer
}

func answers(t *testing.T, r *reply, want result) {
	t.Helper()
	status := http.StatusOK
	if want.code == http.StatusUnauthorized || want.code == http.StatusForbidden {
		status = want.code
	}
	if got := resultOf(t, r); got != want || r.StatusCode != status {
		t.Errorf("the answer is %d %+v, want %+v: %s", r.StatusCode, got, want, r.body)
	}
}

func TestACallOfAToolRunsOnceAndItsReplayHasTheNewID(t *testing.T) {
	t.Parallel()
	s := tools(nil)
	for name, server := range mcpFronts(t, s, nil) {
		t.Run(name, func(t *testing.T) {
			before := s.ran.Load()
			text := fmt.Sprint("run ", before+1)
			for i, id := range []string{`1`, `"two"`, `9007199254740993`, `"\u00e9\""`, `1`} {
				r := post(t, server.URL+"/mcp", callOf(id, "pay", `{"amount":5}`, keyed("k")+`,"progressToken":`+id), header{"Mcp-Session-Id", id})
				answers(t, r, result{id: id, text: text})
				if replayed := r.Header.Get(httpidem.Replayed) == "true"; replayed != (i > 0) {
					t.Errorf("answer %d has %v", i, r.Header)
				}
			}
			// White space, the order of members, and inputs of a round trip do not count.
			again := `{ "method":"tools/call", "id":7, "params":{"arguments":{ "amount" : 5 },"_meta":{"idempotencyKey":"k","traceparent":"x"},"name":"pay","requestState":"s","inputResponses":{}}, "jsonrpc":"2.0"}`
			answers(t, post(t, server.URL+"/mcp", again, nil), result{id: "7", text: text})
			answers(t, post(t, server.URL+"/mcp", callOf(`8`, "pay", `{"amount":5}`, ``), header{"Idempotency-Key", `"k"`}), result{id: "8", text: text})
			answers(t, post(t, server.URL+"/mcp", callOf(`9`, "pay", `{"amount":6}`, keyed("k")), nil), result{id: "9", code: 422, problem: "key-reused"})
			answers(t, post(t, server.URL+"/mcp", callOf(`9`, "refund", `{"amount":5}`, keyed("k")), nil), result{id: "9", code: 422, problem: "key-reused"})
			answers(t, post(t, server.URL+"/mcp", callOf(`9`, "pay", `{"amount":5}`, keyed("k")), header{"Idempotency-Key", "other"}), result{id: "9", code: 400, problem: "key-invalid"})
			s.mustHaveRun(t, before+1)
			answers(t, post(t, server.URL+"/mcp", callOf(`9`, "pay", `{"amount":6}`, keyed("l")), nil), result{id: "9", text: fmt.Sprint("run ", before+2)})
		})
	}
}

func TestOnlyCallsWithAKeyAreClaimed(t *testing.T) {
	t.Parallel()
	s := tools(nil)
	for name, server := range mcpFronts(t, s, nil) {
		t.Run(name, func(t *testing.T) {
			before := s.ran.Load()
			for _, body := range []string{
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"_meta":{"idempotencyKey":"k"}}}`,
				`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
				`{"jsonrpc":"2.0","id":1,"method":"ping"}`,
				`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
				`{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`,
				`[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a"}}]`,
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"idempotencyKey":"k"}}}`,
				`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
				`7`, `"tools/call"`, `[]`, `{}`,
			} {
				for range 2 {
					before++
					r := post(t, server.URL, body, nil)
					if r.StatusCode != 200 || r.Header.Get(httpidem.Replayed) != "" {
						t.Errorf("%s got %v", body, r.Response)
					}
				}
				s.mustHaveRun(t, before)
			}
			if r := post(t, server.URL, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, withKey("k")); r.Header.Get("Idempotency-Status") != "ignored" {
				t.Errorf("a list with a key got %v", r.Header)
			}
			for _, method := range []string{"GET", "DELETE"} {
				request(t, method, server.URL, "", withKey("k")).must(t, 200, "")
			}
			s.mustHaveRun(t, before+3)
		})
	}
}

func TestAmbiguousMessagesAreRefused(t *testing.T) {
	t.Parallel()
	s := tools(nil)
	server := mcpFronts(t, s, func(o *httpidem.Options) { o.Profile.Tools = []string{"pay"} })["handler"]
	call := callOf(`1`, "pay", `{}`, keyed("k"))
	for body, problem := range map[string]httpidem.Problem{
		``:                                   httpidem.BodyUnreadable,
		`{"jsonrpc":"2.0"`:                   httpidem.BodyUnreadable,
		strings.Repeat(`[`, 100_000):         httpidem.BodyUnreadable,
		`{"method":"tools/list",` + call[1:]: httpidem.BodyUnreadable,
		`{"id":2,` + call[1:]:                httpidem.BodyUnreadable,
		strings.Replace(call, `"name":`, `"name":"list","name":`, 1):   httpidem.BodyUnreadable,
		strings.Replace(call, `"params":`, `"params":{},"params":`, 1): httpidem.BodyUnreadable,
		`[` + call + `]`: httpidem.KeyInvalid,
		`[{"jsonrpc":"2.0","id":2,"method":"tools/list"},` + call + `]`: httpidem.KeyInvalid,
		`[` + callOf(`1`, "pay", `{}`, ``) + `]`:                        httpidem.KeyInvalid,
		strings.Replace(call, `"id":1,`, ``, 1):                         httpidem.KeyInvalid,
		strings.Replace(call, `"id":1,`, `"id":null,`, 1):               httpidem.KeyInvalid,
	} {
		post(t, server.URL, body, nil).must(t, 400, problem)
	}
	for _, meta := range []string{`"idempotencyKey":7`, `"idempotencyKey":""`, keyed(strings.Repeat("x", 256)), keyed("a") + "," + keyed("a")} {
		answers(t, post(t, server.URL, callOf(`3`, "refund", `{}`, meta), nil), result{id: "3", code: 400, problem: "key-invalid"})
	}
	answers(t, post(t, server.URL, callOf(`3`, "pay", `{"a":1,"a":2}`, ``), nil), result{id: "3", code: 400, problem: "key-invalid"})
	s.mustHaveRun(t, 0)
}

func TestToolsThatTheProfileNamesGetAKeyFromTheirArguments(t *testing.T) {
	t.Parallel()
	s := tools(nil)
	server := mcpFronts(t, s, func(o *httpidem.Options) { o.Profile.Tools = []string{"pay", "stop"}; o.Profile.Required = true })["proxy"]
	do := func(who, body string) *reply { return post(t, server.URL, body, header{"Caller", who}) }
	answers(t, do("alice", callOf(`1`, "pay", `{"to":"x","amount":5}`, ``)), result{id: "1", text: "run 1"})
	answers(t, do("alice", callOf(`2`, "pay", `{ "amount" : 5, "to" : "x" }`, `"progressToken":2`)), result{id: "2", text: "run 1"})
	// A fingerprint has strings as they are written. The call does not run again.
	answers(t, do("alice", callOf(`2`, "pay", `{"to":"\u0078","amount":5}`, ``)), result{id: "2", code: 422, problem: "key-reused"})
	answers(t, do("bob", callOf(`3`, "pay", `{"to":"x","amount":5}`, ``)), result{id: "3", text: "run 2"})
	answers(t, do("alice", callOf(`4`, "pay", `{"to":"x","amount":5.0}`, ``)), result{id: "4", text: "run 3"})
	answers(t, do("alice", callOf(`5`, "pay", `{"to":"x","amount":5}`, keyed("another purpose"))), result{id: "5", text: "run 4"})
	answers(t, do("alice", callOf(`6`, "stop", `{}`, ``)), result{id: "6", text: "run 5"})
	answers(t, do("alice", callOf(`7`, "list", `{}`, ``)), result{id: "7", code: 400, problem: "key-missing"})
	answers(t, do("", callOf(`8`, "pay", `{}`, ``)), result{id: "8", code: 401, problem: "scope-missing"})
	s.mustHaveRun(t, 5)
}

// Operators look for the key of a tool, and stores keep it for days: it stays as it is.
func TestTheKeyOfAToolIsItsNameAndADigestOfItsArguments(t *testing.T) {
	t.Parallel()
	var got semel.Key
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		got, _ = httpidem.KeyOf(r.Context())
		w.WriteHeader(http.StatusNotFound)
	}}
	opts := named(t, "mcp")
	opts.Profile.Tools = []string{"pay"}
	server := front(t, newGuard(t, newStore(t), hold), s, opts)
	for canonical, body := range map[string]string{
		`{"amount":5,"to":"x"}`: callOf(`1`, "pay", `{ "to":"x", "amount": 5 }`, ``),
		`{}`:                    `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}`,
	} {
		post(t, server.URL, body, nil)
		if want := fmt.Sprintf("5:alice:pay:%x", sha256.Sum256([]byte(canonical))); got.ID != want {
			t.Errorf("the key is %q, want %q", got.ID, want)
		}
	}
}

// A stream: progress reaches the client immediately, and the response is kept.
func TestTheResponseOfAStreamIsKept(t *testing.T) {
	t.Parallel()
	for ending, text := range map[string]string{
		"lf":     "id: 9\ndata: \n\n: a comment\nevent: message\nid: 10\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":%s, \"result\":{\"content\":[{\"text\":\"run %d\"}]}}\n\n",
		"crlf":   "event: message\r\ndata:{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"text\":\"run %d\"}]}}\r\n\r\n",
		"cr":     "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"text\":\"run %d\"}]}}\r\r",
		"bom":    "\ufeffdata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"text\":\"run %d\"}]}}\n\n",
		"asks":   "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"sampling/createMessage\"}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"text\":\"run %d\"}]}}\n\n",
		"other":  "event: other\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"text\":\"run %d\"}]}}\n\n: the end\n\n",
		"bytes":  "",
		"length": "",
	} {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			if text == "" {
				text = "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"text\":\"run %d\"}]}}\n\n"
			}
			seen := make(chan struct{}, 1)
			s := tools(func(w http.ResponseWriter, id string, run int32) {
				w.Header().Set("Content-Type", "text/event-stream")
				const progress = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n"
				rest := fmt.Sprintf(text, id, run)
				if ending == "length" {
					w.Header().Set("Content-Length", fmt.Sprint(len(progress)+len(rest)))
				}
				_, _ = io.WriteString(w, progress)
				_ = http.NewResponseController(w).Flush()
				<-seen
				if ending == "bytes" {
					for i := range len(rest) {
						_, _ = io.WriteString(w, rest[i:i+1])
						_ = http.NewResponseController(w).Flush()
					}
					return
				}
				_, _ = io.WriteString(w, rest)
			})
			for name, server := range mcpFronts(t, s, nil) {
				run := fmt.Sprint("run ", s.ran.Load()+1)
				first := openCall(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k")))
				in := bufio.NewReader(first.Body)
				for line := ""; !strings.Contains(line, "progress"); {
					var err error
					if line, err = in.ReadString('\n'); err != nil {
						t.Fatalf("%s: the progress did not come: %v", name, err)
					}
				}
				seen <- struct{}{}
				rest, err := io.ReadAll(in)
				_ = first.Body.Close() // it was read
				if err != nil || !strings.HasSuffix(strings.ReplaceAll(string(rest), "\r", "\n"), fmt.Sprintf(strings.ReplaceAll(text, "\r", "\n"), "1", s.ran.Load())) {
					t.Errorf("%s: the stream ended with %q, %v", name, rest, err)
				}
				again := post(t, server.URL, callOf(`"new"`, "pay", `{}`, keyed("k")), header{"Caller", "alice"})
				answers(t, again, result{id: `"new"`, text: run})
				if again.Header.Get("Content-Type") != "text/event-stream" || bytes.Contains(again.body, []byte("id: ")) {
					t.Errorf("%s: the replay is %v %q", name, again.Header, again.body)
				}
			}
			s.mustHaveRun(t, 2)
		})
	}
}

// reply200 answers with JSON.
func reply200(w http.ResponseWriter, text string, values ...any) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, text, values...)
}

func TestAResponseSaysWhetherTheCallTookEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer  string // with the id and the run
		status  int
		runs    int32 // of two calls
		release []string
	}{
		"tool failed":            {`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"text":"run %d"}],"isError":true}}`, 200, 1, nil},
		"tool failed, released":  {`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"text":"run %d"}],"isError":true}}`, 200, 2, []string{"isError"}},
		"no effect":              {`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"text":"run %d"}],"isError":true,"_meta":{"idempotencyNoEffect":true}}}`, 200, 2, nil},
		"input required":         {`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"run %d"}}`, 200, 2, nil},
		"complete":               {`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[{"text":"run %d"}]}}`, 200, 1, nil},
		"arguments or result":    {`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"run %d"}}`, 200, 1, nil},
		"unknown method":         {`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"run %d"}}`, 404, 2, nil},
		"page to visit":          {`{"jsonrpc":"2.0","id":%s,"error":{"code":-32042,"message":"run %d"}}`, 200, 2, nil},
		"internal":               {`{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"run %d"}}`, 200, 1, nil},
		"code 0":                 {`{"jsonrpc":"2.0","id":%s,"error":{"code":0,"message":"run %d"}}`, 200, 1, []string{"isError"}},
		"code 4":                 {`{"jsonrpc":"2.0","id":%s,"error":{"code":4,"message":"run %d"}}`, 200, 1, nil},
		"own code":               {`{"jsonrpc":"2.0","id":%s,"error":{"code":1001,"message":"run %d"}}`, 200, 2, []string{"1001"}},
		"session ended":          {`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"%s run %d"}}`, 404, 2, nil},
		"error of the server":    {`{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"run %d"}}`, 500, 1, nil},
		"page of a gateway":      {`<html>%s run %d</html>`, 502, 1, nil},
		"accepted, without more": {`%.0s%.0d`, 202, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tools(func(w http.ResponseWriter, id string, run int32) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.status)
				fmt.Fprintf(w, c.answer, id, run)
			})
			for front, server := range mcpFronts(t, s, func(o *httpidem.Options) {
				if c.release != nil {
					o.Profile.Release = c.release
				}
			}) {
				before := s.ran.Load()
				for i := range int32(2) {
					r := post(t, server.URL, callOf(fmt.Sprint(i), "pay", `{}`, keyed("k")), nil)
					run := before + 1
					if c.runs == 2 {
						run += i
					}
					var want, got any
					whole := fmt.Sprintf(c.answer, fmt.Sprint(i), run)
					if r.StatusCode != c.status || json.Unmarshal([]byte(whole), &want) == nil && (json.Unmarshal(r.body, &got) != nil || fmt.Sprint(got) != fmt.Sprint(want)) {
						t.Errorf("%s: answer %d is %d %s, want %d %s", front, i, r.StatusCode, r.body, c.status, whole)
					}
					if want == nil && !bytes.Contains(r.body, fmt.Appendf(nil, "%.*d", 0, run)) {
						t.Errorf("%s: answer %d is %s", front, i, r.body)
					}
				}
				s.mustHaveRun(t, before+c.runs)
			}
		})
	}
}

// What is answered with 200 and is no response cannot be replayed under another id.
func TestAnAnswerWithoutAResponseIsNotKept(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{`[{"jsonrpc":"2.0","id":%s,"result":{"run":%d}}]`, `not JSON %s %d`, `{"jsonrpc":"2.0","id":%s,"method":"x","params":{"run":%d}}`} {
		s := tools(func(w http.ResponseWriter, id string, run int32) { reply200(w, answer, id, run) })
		for _, server := range mcpFronts(t, s, nil) {
			before := s.ran.Load()
			post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k")), nil)
			answers(t, post(t, server.URL, callOf(`2`, "pay", `{}`, keyed("k")), nil), result{id: "2", code: 409, problem: "response-not-kept"})
			s.mustHaveRun(t, before+1)
		}
	}
	s := tools(func(w http.ResponseWriter, id string, _ int32) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		zip := gzip.NewWriter(w)
		fmt.Fprintf(zip, `{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		_ = zip.Close() // the client is there
	})
	server := mcpFronts(t, s, nil)["handler"]
	post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k")), nil)
	answers(t, post(t, server.URL, callOf(`2`, "pay", `{}`, keyed("k")), nil), result{id: "2", code: 409, problem: "response-not-kept"})
	s.mustHaveRun(t, 1)
}

// A stream that ends without the response leaves the outcome unknown. Its client gets an error
// instead of a stream without an end, unless it can ask for the rest.
func TestAStreamWithoutTheResponseIsUnknown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sends  string
		breaks bool
		told   bool
	}{
		"ends":             {"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n", false, true},
		"ends in an event": {"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n", false, true},
		"empty":            {"", false, true},
		"ends after much":  {"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":\"" + strings.Repeat("x", 20_000) + "\"}\n\n", false, true},
		"resumes":          {"id: 1\ndata:\n\nretry: 100\n\n", false, false},
		"breaks off":       {"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"resu", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tools(func(w http.ResponseWriter, _ string, _ int32) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, c.sends)
				_ = http.NewResponseController(w).Flush()
				if c.breaks {
					panic(http.ErrAbortHandler)
				}
			})
			server := mcpFronts(t, s, func(o *httpidem.Options) { o.MaxResponse = 10_000 })["proxy"]
			first := post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k")), nil)
			if c.told {
				at := bytes.LastIndex(first.body, []byte("data: "))
				first.body = first.body[max(at, 0):]
				answers(t, first, result{id: "1", code: 409, problem: "outcome-unknown"})
			} else if first.err != nil || string(first.body) != c.sends {
				t.Errorf("the client got %q, %v", first.body, first.err)
			}
			answers(t, post(t, server.URL, callOf(`2`, "pay", `{}`, keyed("k")), nil), result{id: "2", code: 409, problem: "outcome-unknown"})
			s.mustHaveRun(t, 1)
		})
	}
}

// A service may leave a stream open behind its response, and a client may leave before it.
func TestTheResponseEndsACall(t *testing.T) {
	t.Parallel()
	gone, entered := make(chan struct{}), make(chan struct{}, 2)
	s := &service{}
	s.handle = func(w http.ResponseWriter, r *http.Request) {
		left := r.Header.Get("Leaves") != ""
		body, err := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": begins\n\n")
		_ = http.NewResponseController(w).Flush()
		entered <- struct{}{}
		if left {
			<-gone
		}
		var m struct{ ID json.RawMessage }
		if err != nil || json.Unmarshal(body, &m) != nil {
			return
		}
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"text\":\"run %d\"}]}}\n\n", m.ID, s.ran.Load())
		_ = http.NewResponseController(w).Flush()
		if !left {
			<-r.Context().Done() // it does not end by itself
		}
	}
	server := mcpFronts(t, s, nil)["proxy"]
	answers(t, post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("open")), nil), result{id: "1", text: "run 1"})
	<-entered
	answers(t, post(t, server.URL, callOf(`2`, "pay", `{}`, keyed("open")), nil), result{id: "2", text: "run 1"})

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = send(ctx, server.URL, strings.NewReader(callOf(`1`, "pay", `{}`, keyed("left"))), header{"Leaves", "yes"}) // it leaves
	}()
	<-entered
	answers(t, post(t, server.URL, callOf(`"b"`, "pay", `{}`, keyed("left")), nil), result{id: `"b"`, code: 409, problem: "in-flight"})
	cancel()
	<-ended
	close(gone)
	for end := time.Now().Add(30 * time.Second); ; {
		r := post(t, server.URL, callOf(`3`, "pay", `{}`, keyed("left")), nil)
		if resultOf(t, r).problem != "in-flight" || time.Now().After(end) {
			answers(t, r, result{id: "3", text: "run 2"})
			break
		}
	}
	s.mustHaveRun(t, 2)
}

// A long stream of notifications takes no memory, and an event that is too long is not kept.
func TestOnlyTheResponseOfAStreamCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event int
		want  result
	}{"long stream": {500, result{id: "2", text: "run 1"}}, "long event": {20_000, result{id: "2", code: 409, problem: "response-not-kept"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tools(func(w http.ResponseWriter, id string, run int32) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range 100 {
					fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":%q}\n\n", strings.Repeat("x", 500))
				}
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"x\":%q,\"content\":[{\"text\":\"run %d\"}]}}\n\n", id, strings.Repeat("x", c.event), run)
			})
			server := mcpFronts(t, s, func(o *httpidem.Options) { o.MaxResponse, o.MaxBody = 10_000, 10_000 })["handler"]
			answers(t, post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k")), nil), result{id: "1", text: "run 1"})
			answers(t, post(t, server.URL, callOf(`2`, "pay", `{}`, keyed("k")), nil), c.want)
			s.mustHaveRun(t, 1)
			post(t, server.URL, callOf(`1`, "pay", fmt.Sprintf(`%q`, strings.Repeat("x", 10_000)), keyed("l")), nil).must(t, 413, httpidem.BodyTooLarge)
		})
	}
}

// TestTheResponseOfAStreamMayBeInABatch has a service of revision 2025-03-26, which sends
// notifications and the response as one event.
func TestTheResponseOfAStreamMayBeInABatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		batch string
		runs  string // of which the second call gets the answer, or "" if the outcome is not known
	}{
		"behind a notification": {`[{"jsonrpc":"2.0","method":"notifications/progress","params":{}},{"jsonrpc":"2.0","id":ID,"result":{"content":[{"text":"run RUN"}]}}]`, "run 1"},
		"alone":                 {`[ {"jsonrpc":"2.0","id":ID,"result":{"content":[{"text":"run RUN"}]}} ]`, "run 1"},
		"none":                  {`[{"jsonrpc":"2.0","method":"notifications/progress","params":{"result":{}}},[],7]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tools(func(w http.ResponseWriter, id string, run int32) {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, "data: %s\n\n", strings.NewReplacer("ID", id, "RUN", fmt.Sprint(run)).Replace(c.batch))
				_ = http.NewResponseController(w).Flush() // otherwise it would have a length, and no room for an error
			})
			for kind, server := range mcpFronts(t, s, nil) {
				before := s.ran.Load()
				first := post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k-"+kind)), nil)
				if failed := strings.Contains(string(first.body), `"error"`); failed != (c.runs == "") {
					t.Errorf("%s: the first answer is %s", kind, first.body)
				}
				want := result{id: "2", text: fmt.Sprint("run ", before+1)}
				if c.runs == "" {
					want = result{id: "2", code: 409, problem: "outcome-unknown"}
				}
				answers(t, post(t, server.URL, callOf(`2`, "pay", `{}`, keyed("k-"+kind)), nil), want)
				s.mustHaveRun(t, before+1)
			}
		})
	}
}

func TestACallIsRefusedWhileTheStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := tools(nil)
	store := &failing{Store: newStore(t)}
	store.claim.Store(true)
	server := front(t, newGuard(t, store, hold), s, named(t, "mcp"))
	answers(t, post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k")), nil), result{id: "1", code: 503, problem: "store-unavailable"})
	s.mustHaveRun(t, 0)
	opts := named(t, "mcp")
	opts.FailOpen = true
	server = front(t, newGuard(t, store, hold), s, opts)
	answers(t, post(t, server.URL, callOf(`1`, "pay", `{}`, keyed("k")), nil), result{id: "1", text: "run 1"})
}

// An answer that was kept with another profile gets the id of the call, too.
func TestAnAnswerOfAnotherProfileGetsTheNewID(t *testing.T) {
	t.Parallel()
	s := tools(nil)
	guard := newGuard(t, newStore(t), hold)
	before := front(t, guard, s, &httpidem.Options{Fingerprint: httpidem.FingerprintOptions{Exclude: []string{"/id", "/params/_meta", "/params/requestState", "/params/inputResponses"}}})
	after := front(t, guard, s, named(t, "mcp"))
	same := func(server *httptest.Server, id string) *reply {
		return post(t, server.URL, callOf(id, "pay", `{}`, ``), header{"Idempotency-Key", "k", "Host", "x"})
	}
	answers(t, same(before, "1"), result{id: "1", text: "run 1"})
	got := resultOf(t, same(after, "2"))
	if got.problem != "key-reused" && got != (result{id: "2", text: "run 1"}) { // the host has another port
		t.Errorf("the answer is %+v", got)
	}
	s.mustHaveRun(t, 1)
}

func FuzzMCPMessages(f *testing.F) {
	for _, body := range []string{callOf(`1`, "pay", `{"a":[1]}`, keyed("k")), `[` + callOf(`"x"`, "pay", `7`, ``) + `]`, `{"method":"tools/call","id":1,"params":[]}`, `{"method":"tools/call","params":{"_meta":7}}`} {
		f.Add(body, "data: {\"id\":1,\"result\":{}}\n\n", uint8(3))
	}
	store, err := memstore.New(nil)
	if err != nil {
		f.Fatal(err)
	}
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		f.Fatal(err)
	}
	p, _ := httpidem.ProfileNamed("mcp")
	p.Tools = []string{"pay"}
	var stream atomic.Value
	handler, err := httpidem.New(guard, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		parts := stream.Load().([]string)
		w.Header().Set("Content-Type", "text/event-stream")
		for _, part := range parts {
			_, _ = io.WriteString(w, part)
		}
	}), &httpidem.Options{Scope: httpidem.AnyCaller, Profile: p})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body, events string, at uint8) {
		cut := min(int(at), len(events))
		stream.Store([]string{events[:cut], events[cut:]})
		for range 2 {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body)))
			if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") && !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s", w.Body)
			}
		}
	})
}
