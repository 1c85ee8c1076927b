//go:build unix

package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testCase is an element of cases.json.
type testCase struct {
	Name string
	// Verbs and Faults: the case runs with each fault of each verb. Times is how many
	// requests have the fault, by default one.
	Verbs, Faults []string
	Times         int
	// Policy is hold or retry. Lease, Window and RetryFor are durations.
	Policy, Lease, Window string
	RetryFor              string `json:"retry_for"`
	// Server is own if the steps end the server.
	Server string
	// Clock is how many seconds the wall clock of the client is wrong.
	Clock int
	// Journal says how effects end, see journal.
	Journal []string
	Steps   []step
	// Effects is how many effects happen. Entries is how many begin, if these are not the
	// entries of Journal that happened. Attempts are those of all entries.
	Effects  int
	Entries  *int
	Attempts []int
}

// step is one step of a case. It has one of the first nine fields.
type step struct {
	// Call makes N calls of an id and waits for their end, Start does not wait, End does.
	Call, Start, End json.RawMessage
	// Fork makes the call in a forked child. Batch makes one call for each id.
	Fork  json.RawMessage
	Batch []json.RawMessage
	// Await waits for an effect that has begun, for Count renewals, for a request that finds
	// no server (refused) or one that drains (draining), or for the state of the key a.
	Await string
	// Effect ends the effects that the journal holds. State compares the state of the key a.
	Effect, State string
	// Server kills, starts or drains the server, or waits for its end. Client stops,
	// continues or kills the driver.
	Server, Client string

	N       int
	Count   int
	Wait    string
	Payload json.RawMessage
	Age     string
	// By is the other driver process.
	By string
	// Want has the outcomes that each call may have: a word of outcome, large, value for any
	// result of the key, or value:1 for that of the first effect.
	Want string
}

func readCases(t *testing.T) (cases []testCase) {
	t.Helper()
	text, err := os.ReadFile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// combinations returns the case with each verb and each fault.
func (c testCase) combinations() (list []testCase) {
	if len(c.Verbs) == 0 {
		c.Verbs, c.Faults = []string{""}, []string{""}
	}
	for _, verb := range c.Verbs {
		for _, fault := range c.Faults {
			one := c
			one.Verbs, one.Faults = []string{verb}, []string{fault}
			list = append(list, one)
		}
	}
	return list
}

func (c *testCase) title() string {
	if c.Verbs[0] == "" {
		return c.Name
	}
	return c.Name + ", " + c.Verbs[0] + " " + c.Faults[0]
}

var scopes atomic.Int64

// alone reports whether the case needs a process of its own. Such a case does something to the
// process, keeps it busy, or has leases so short that they could end while another case does.
func (c *testCase) alone() bool {
	return c.Clock != 0 || c.Lease != "" || slices.ContainsFunc(c.Steps, func(s step) bool {
		return s.Client != "" || s.Fork != nil || s.By != "" || s.N >= 100
	})
}

// run runs one combination of a case. Cases share a server and a process if they may.
func (c testCase) run(t *testing.T, d driver, shared *server, process *process) {
	r := &run{T: t, testCase: &c, driver: d, server: shared, own: process, scope: fmt.Sprintf("case-%d", scopes.Add(1)), started: map[string]waiting{}}
	if c.Server == "own" {
		r.server = newServer(t)
	}
	r.journal = newJournal(t, c.Journal)
	r.proxy = newProxy(t, r.server, c.Verbs[0], c.Faults[0], max(c.Times, 1))
	if c.alone() {
		r.own = d.start(t)
	}
	for i, s := range c.Steps {
		r.step = fmt.Sprintf("step %d of %q", i+1, c.title())
		r.take(s)
		if t.Failed() {
			break
		}
	}
	r.judge()
}

// run is a case that runs.
type run struct {
	*testing.T
	*testCase
	driver     driver
	server     *server
	journal    *journal
	proxy      *proxy
	own, other *process
	scope      string
	step       string
	started    map[string]waiting
}

// waiting is a command without an answer.
type waiting struct {
	by       *process
	outcomes <-chan []outcome
}

func (r *run) take(s step) {
	r.Helper()
	switch {
	case s.Call != nil:
		r.want(r.end(r.send("once", s.Call, s)), s)
	case s.Fork != nil:
		r.want(r.end(r.send("fork", s.Fork, s)), s)
	case s.Start != nil:
		r.started[string(s.Start)] = r.send("once", s.Start, s)
	case s.End != nil:
		r.want(r.end(r.started[string(s.End)]), s)
	case s.Batch != nil:
		r.want(r.end(r.send("batch", nil, s)), s)
	case s.Await != "":
		r.await(s)
	case s.Effect == "end":
		r.journal.letGo()
	case s.State != "":
		if state, err := r.server.state(r.scope, json.RawMessage(`"a"`)); err != nil || state != s.State {
			r.Errorf("%s: the state is %q, want %q: %v", r.step, state, s.State, err)
		}
	case s.Server == "kill":
		r.server.kill()
	case s.Server == "start":
		r.server.start()
	case s.Server == "drain":
		r.server.drain()
	case s.Server == "wait":
		r.server.wait()
	case s.Client == "stop":
		r.own.signal(r.T, syscall.SIGSTOP)
	case s.Client == "continue":
		r.own.signal(r.T, syscall.SIGCONT)
	case s.Client == "kill":
		r.own.signal(r.T, syscall.SIGKILL)
	default:
		r.Fatalf("%s says nothing that is known", r.step)
	}
}

// send sends the command of a step to a driver.
func (r *run) send(op string, id json.RawMessage, s step) waiting {
	r.Helper()
	or := func(value, otherwise string) string {
		if value == "" {
			return otherwise
		}
		return value
	}
	c := command{
		Op: op, ID: id, Key: string(id), IDs: s.Batch, N: max(s.N, 1), Payload: s.Payload, URL: r.proxy.URL, Scope: r.scope, Journal: r.journal.URL, Clock: r.Clock,
		Policy: or(r.Policy, "hold"), Lease: or(r.Lease, "60s"), Window: or(r.Window, "7d"), Wait: or(s.Wait, "0s"), RetryFor: or(r.RetryFor, "150s"), Timeout: "60s",
	}
	if r.Faults[0] == "delay" {
		c.Timeout = "1s"
	}
	for _, id := range s.Batch {
		c.Keys = append(c.Keys, string(id))
	}
	if s.Age != "" {
		age, err := time.ParseDuration(s.Age)
		if err != nil {
			r.Fatal(err)
		}
		c.Age = age.Seconds()
	}
	by := r.own
	if s.By == "other" {
		if r.other == nil {
			r.other = r.driver.start(r.T)
		}
		by = r.other
	}
	return waiting{by, by.send(r.T, c)}
}

// end waits for the outcomes of a command.
func (r *run) end(w waiting) []outcome {
	r.Helper()
	select {
	case list := <-w.outcomes:
		return list
	case <-w.by.ended:
		r.Fatalf("%s: the driver ended", r.step)
	case <-time.After(patience):
		r.Fatalf("%s: no answer", r.step)
	}
	return nil
}

// want compares outcomes with those that a step wants.
func (r *run) want(got []outcome, s step) {
	r.Helper()
	if n := max(s.N, len(s.Batch), 1); len(got) != n {
		r.Errorf("%s: %d outcomes, want %d", r.step, len(got), n)
	}
	words := strings.Split(s.Want, "|")
	for _, o := range got {
		said := o.Error
		if o.Error == "" {
			said = r.value(o.Value)
		}
		if !slices.Contains(words, said) && !(slices.Contains(words, "value") && strings.HasPrefix(said, "value:")) {
			r.Errorf("%s: got %s %s, want %s", r.step, said, o.Message, s.Want)
			return
		}
	}
}

// value says which effect a value is the result of.
func (r *run) value(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil && text == r.journal.large {
		return "large"
	}
	var result struct {
		Effect int
		Key    string
		Text   string
		List   []any
	}
	if err := json.Unmarshal(value, &result); err != nil || result.Text != "é ☃ \" \\ \u0000" || fmt.Sprint(result.List) != "[1 2.5 true <nil>]" {
		return fmt.Sprintf("the value %.200s", value)
	}
	entries, _ := r.journal.all()
	if result.Effect < 1 || result.Effect > len(entries) || entries[result.Effect-1].Key != result.Key {
		return fmt.Sprintf("the value of another key %s", value)
	}
	return fmt.Sprintf("value:%d", result.Effect)
}

// await waits for what a step names.
func (r *run) await(s step) {
	r.Helper()
	counters := map[string]*int{"renewals": &r.proxy.renewals, "refused": &r.proxy.refused, "draining": &r.proxy.draining}
	late := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		entries, began := r.journal.all()
		changed := began
		switch counter := counters[s.Await]; {
		case s.Await == "effect":
			if len(entries) > 0 {
				return
			}
		case counter != nil:
			r.proxy.mu.Lock()
			n := *counter
			changed = r.proxy.changed
			r.proxy.mu.Unlock()
			if n >= max(s.Count, 1) {
				return
			}
		default: // a state, for which there is no signal
			if state, err := r.server.state(r.scope, json.RawMessage(`"a"`)); err == nil && state == s.Await {
				return
			}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-late:
			r.Fatalf("%s: waited in vain for %s", r.step, s.Await)
		}
	}
}

// judge compares the journal with the case and with the promises of Semel.
func (r *run) judge() {
	r.Helper()
	entries, _ := r.journal.all()
	happened, last := map[string]int{}, map[string]entry{}
	effects := 0
	var attempts []int
	for _, e := range entries {
		attempts = append(attempts, e.Attempt)
		if e.happened() {
			effects++
			happened[e.Key]++
		}
		if before, again := last[e.Key]; again && before.mayHave() && e.Attempt < 2 {
			r.Errorf("%s ran again, and did not know it: %+v after %+v", e.Key, e, before)
		}
		last[e.Key] = e
		r.proxy.mu.Lock()
		if !slices.Contains(r.proxy.granted, e.Token) {
			r.Errorf("%s ran under the token %q, which no claim was answered with", e.Key, e.Token)
		}
		r.proxy.mu.Unlock()
	}
	for key, n := range happened {
		if n > 1 && r.Policy != "retry" {
			r.Errorf("the effect of %s happened %d times under hold", key, n)
		}
	}
	if effects != r.Effects {
		r.Errorf("%d effects, want %d: %+v", effects, r.Effects, entries)
	}
	if r.Entries != nil && len(entries) != *r.Entries {
		r.Errorf("%d effects began, want %d", len(entries), *r.Entries)
	}
	if r.Attempts != nil && !slices.Equal(attempts, r.Attempts) {
		r.Errorf("attempts %v, want %v", attempts, r.Attempts)
	}
	r.proxy.mu.Lock()
	defer r.proxy.mu.Unlock()
	if r.Faults[0] != "" && r.proxy.faults == 0 {
		r.Error("the fault did not happen")
	}
}

// base64ID returns the bytes of an id that are written as base64.
func base64ID(id json.RawMessage) (string, bool) {
	var object struct{ Base64 string }
	if json.Unmarshal(id, &object) != nil || object.Base64 == "" {
		return "", false
	}
	return object.Base64, true
}
