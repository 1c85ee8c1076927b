package kafka

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// journal is what a receiver of requests saw.
type journal struct {
	random *rand.Rand

	mu       sync.Mutex
	accepted map[string]int
	broken   map[string]int    // of those, with answers that were lost
	attempts map[string]int    // the highest of each key
	tokens   map[string]uint64 // the highest of each key
	late     int               // repeats with a token that is lower than one before
	wrong    []string
}

func newJournal(seed uint64) *journal {
	return &journal{random: rand.New(rand.NewPCG(seed, 2)), accepted: map[string]int{}, broken: map[string]int{}, attempts: map[string]int{}, tokens: map[string]uint64{}}
}

// ServeHTTP implements http.Handler. It refuses some requests, and loses some
// answers.
func (j *journal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ ID string }
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &body)
	}
	attempt, err2 := strconv.Atoi(r.Header.Get("Semel-Attempt"))
	token, err3 := strconv.ParseUint(r.Header.Get("Semel-Token"), 10, 64)
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Join(err, err2, err3) != nil || r.Header.Get("Idempotency-Key") != body.ID {
		j.wrong = append(j.wrong, fmt.Sprintf("%s with %v", data, r.Header))
	}
	chance := j.random.IntN(100)
	switch {
	case strings.HasPrefix(body.ID, refusedID):
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	case chance == 0:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	j.accepted[body.ID]++
	// Attempts within a claim that a crash ended are not counted, so that a number
	// may come twice.
	switch repeated := j.accepted[body.ID] > 1; {
	case repeated && token < j.tokens[body.ID]:
		j.late++
	case repeated && (attempt < 2 || attempt < j.attempts[body.ID]):
		j.wrong = append(j.wrong, fmt.Sprintf("key %s had its effect again at attempt %d, after attempt %d", body.ID, attempt, j.attempts[body.ID]))
	}
	j.attempts[body.ID] = max(j.attempts[body.ID], attempt)
	j.tokens[body.ID] = max(j.tokens[body.ID], token)
	if chance == 1 { // it had its effect, and the answer is lost
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			j.broken[body.ID]++
			conn.Close()
		}
	}
}

// keys returns how many keys had their effect.
func (j *journal) keys() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.accepted)
}

// refusedID begins the ids of messages that a receiver refuses permanently.
const refusedID = "p"

// repeats returns how often an effect was repeated, and how many of these are not
// the next of an effect whose answer was lost.
func (j *journal) repeats(keys int) (repeats, answered int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for number := range keys {
		id := strconv.Itoa(number)
		again := max(j.accepted[id]-1, 0)
		repeats += again
		answered += max(again-j.broken[id], 0)
	}
	return repeats, answered
}

// check compares the journal with the keys that were written. Of effects whose
// answers came, at most so many may have been repeated.
func (j *journal) check(t *testing.T, keys, most int) {
	t.Helper()
	repeats, answered := j.repeats(keys)
	t.Logf("%d effects were repeated, %d of them although their answers came; %d such may be", repeats, answered, most)
	if answered > most {
		t.Errorf("%d effects were repeated although their answers came, but only %d can have been under way at what happened", answered, most)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	lost := 0
	for number := range keys {
		if j.accepted[strconv.Itoa(number)] == 0 {
			lost++
			if lost <= 10 {
				t.Errorf("key %d is lost", number)
			}
		}
	}
	if lost > 10 {
		t.Errorf("%d keys are lost", lost)
	}
	for i, text := range j.wrong {
		if i == 10 {
			t.Errorf("and %d more", len(j.wrong)-i)
			break
		}
		t.Error(text)
	}
}

// callsInFlight is how many requests a program has under way concurrently.
const callsInFlight = 16

// mayRepeat returns how many effects whose answers came may be repeated after an
// event. As `semel explain` says, these are effects where a process dies, or loses the
// store for longer than the lease, between an effect and its completion. A process that
// stands still loses it as well. A program that gets a signal completes its work, and neither the
// broker nor the cache hinders it.
func mayRepeat(event string, programs int) int {
	switch how, what, _ := strings.Cut(event, "-"); {
	case what == "database":
		return programs * callsInFlight
	case what == "program" && (how == "kill" || how == "pause"), what == "steady":
		return callsInFlight
	}
	return 0
}

// wantExplained fails the test unless the program names the reasons for repeats
// that are counted here, and no other.
func wantExplained(t *testing.T, d *daemon) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), d.program, "explain", d.config, "calls", "--json").Output()
	must(t, err)
	var promise struct {
		Answer struct {
			Holds   string
			Because []string
		} `json:"no_second_effect"`
	}
	must(t, json.Unmarshal(said, &promise))
	reasons := []string{
		"dies, or loses the store for longer than the lease, between the effect and the completion", "its answer does not come",
		"a process that hangs, or cannot reach the store",
	}
	same := promise.Answer.Holds == "unless" && len(promise.Answer.Because) == len(reasons)
	for i, reason := range reasons {
		same = same && strings.Contains(promise.Answer.Because[i], reason)
	}
	if !same {
		t.Errorf("effects repeat %s %q; the test counts those for %q", promise.Answer.Holds, promise.Answer.Because, reasons)
	}
}

// TestRequestsRepeatOnlyWithTheirAttempts moves messages to a receiver of requests,
// with keys in PostgreSQL and a cache in Redis above, while the program and the
// servers are killed. Effects may be repeated where explain says so, and as many as
// can have been under way then.
func TestRequestsRepeatOnlyWithTheirAttempts(t *testing.T) {
	seed, random := chooseSeed(t)
	broker := servicestest.StartKafka(t, nil)
	database := servicestest.StartPostgres(t, nil)
	cache := servicestest.StartRedis(t, nil)
	feed := newFeeding(t, broker.Addr(), seed)
	seen := newJournal(seed)
	receiver := httptest.NewServer(seen)
	defer receiver.Close()
	d := newDaemon(t, built(t), fmt.Sprintf(`
stores:
  cache: { redis: { url: %q } }
  db: { postgres: { dsn: %q } }
  both: { tiered: [cache, db] }
pipelines:
  calls:
    source: { kafka: { brokers: [%q], topics: [in], group: calls } }
    key: { id: .id }
    window: 1d
    lease: 9s # longer than the machine stands still, whose repeats nobody counts
    store: both
    parallel: %d
    sink: { webhook: { url: %q, allow_private: true } }
    on_failure: { attempts: 1000, backoff: 500ms }
`, cache.URL(), database.URL(), broker.Addr(), callsInFlight, receiver.URL))
	wantExplained(t, d)
	d.do(t, "migrate", "up", "--config", d.config, "--store-name", "db")
	d.start(t)

	total := *messages / 5
	events := shuffled(random, "stop-program kill-program kill-cache kill-database", max(*kills-1, 1))
	events = append(events, "kill-broker")
	servers := map[string]*services.Server{"database": database, "broker": broker, "cache": cache}
	share := total / (len(events) + 1)
	most := 0
	for _, event := range events {
		most += mayRepeat(event, 1)
		had, more := seen.keys(), random.IntN(share/2)
		feed.write(t, share)
		within(5*time.Second, func() bool { return seen.keys() >= had+more }) // requests are under way
		disturb(t, event, d, servers)
	}
	feed.write(t, total-share*len(events))
	feed.settled(t, "calls")
	d.end(t, syscall.SIGTERM)

	seen.check(t, len(feed.amounts), most)
	if seen.late > 0 {
		t.Errorf("%d requests came after one with a higher token, but no program stood still", seen.late)
	}
	t.Logf("%d messages, %d keys, %v", total, len(feed.amounts), events)
}

// TestJournalReportsUnexplainedRepeats has a client repeat what was not
// answered, and then one effect in ten that was.
func TestJournalReportsUnexplainedRepeats(t *testing.T) {
	t.Parallel()
	const keys = 1000
	seen := newJournal(1)
	receiver := httptest.NewServer(seen)
	defer receiver.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // one that is kept may be used again by itself
	send := func(number, from int) {
		for attempt := from; ; attempt++ {
			body := fmt.Sprintf(`{"id":"%d"}`, number)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, receiver.URL, strings.NewReader(body))
			must(t, err)
			r.Header.Set("Idempotency-Key", strconv.Itoa(number))
			r.Header.Set("Semel-Attempt", strconv.Itoa(attempt))
			r.Header.Set("Semel-Token", strconv.Itoa(attempt))
			answer, err := client.Do(r)
			if err != nil {
				continue
			}
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
	}
	for number := range keys {
		send(number, 1)
	}
	if repeats, answered := seen.repeats(keys); repeats == 0 || answered > 0 {
		t.Errorf("%d repeats, %d of them although their answers came; want some, and none", repeats, answered)
	}
	for number := 0; number < keys; number += 10 {
		send(number, 100)
	}
	if _, answered := seen.repeats(keys); answered != keys/10 {
		t.Errorf("%d effects were repeated although their answers came, want %d", answered, keys/10)
	}
	seen.check(t, keys, keys/10)
}
