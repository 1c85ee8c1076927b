package explain

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
)

const stores = `stores:
  keys:  { embedded: { path: ./semel-data } }
  db:    { postgres: { dsn: "host=h dbname=d password=canary-1f7b" } }
  cache: { redis: { url: "redis://:canary-1f7b@h" } }
  seen:  { filter: { rate: 0.01, expect: 1, window: 7d, redis: cache } }
  top:   { memory: {} }
  own:   { memory: {} }
  both:  { tiered: [top, db] }
pipelines:
  p:
    key: { id: .id }
`

const (
	fromFile  = "    source: { file: { paths: [in] } }\n"
	fromHTTP  = "    source: { http: { listen: '127.0.0.1:80' } }\n"
	fromKafka = "    source: { kafka: { brokers: ['h:1'], topics: [in], group: g, retention: 1d } }\n"
	toWebhook = "    sink: { webhook: { url: 'https://u:canary-1f7b@example.com/x' } }\n"
	toFile    = "    sink: { file: { path: out } }\n"
	toStdout  = "    sink: { stdout: {} }\n"
	toKafka   = "    sink: { kafka: { brokers: ['h:1'], topic: out } }\n"
	counts    = "    aggregate: { by: .g, over: { tumbling: 1m }, values: { n: count }"
	toRows    = "    sink: { postgres: { store: db, table: t, columns: { id: .id } } }\n"
)

// keeps is the start of a line that says what the key of the pipeline keeps.
const keeps = "keep: "

func keep(what string) string { return keeps + what + "\n" }

func promise(t *testing.T, text string) *Promise {
	t.Helper()
	all := stores
	if rest, ok := strings.CutPrefix(text, keeps); ok {
		what, others, _ := strings.Cut(rest, "\n")
		all, text = strings.Replace(all, "id: .id", "id: .id, keep: { "+what+" }", 1), others
	}
	f, err := kind.All().Parse("c.yaml", []byte(all+text), func(string) string { return "" })
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return Explain(f, f.Pipelines[0])
}

// TestExplainStatesThePromiseOfEachMode is the table of promises.
func TestExplainStatesThePromiseOfEachMode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, mode, lost, second string
		because                  string // a part of a reason
		says                     string // a part of the whole text
	}{
		{fromKafka + "    store: db\n" + toRows, "one transaction in PostgreSQL", Yes, Yes, "", "asynchronous replica"},
		{fromKafka + toKafka, "one transaction in Kafka", Yes, Yes, "", "isolation read_committed"},
		{fromKafka + toKafka, "one transaction in Kafka", Yes, Yes, "", "duplicates in several partitions are not found"},
		{fromKafka + toKafka + "    transaction: { time: event, grace: 5m }\n", "one transaction in Kafka", Yes, Yes, "", "more than the grace of 5m is late, and is delivered (on_late: run): a late duplicate may be delivered again"},
		{fromKafka + toKafka + counts + ", late: drop }\n", "one transaction in Kafka", Unless, Yes, "a record whose window is closed is lost", "a record comes after its window is closed"},
		{fromKafka + toKafka + counts + ", grace: 30s }\n", "one transaction in Kafka", Yes, Yes, "", "newer than the window's end by at least the grace of 30s"},
		{fromKafka + toKafka + counts + " }\n", "one transaction in Kafka", Yes, Yes, "", "the record is part of its window in the topic g-state"},
		{fromKafka + toKafka + counts + " }\n", "one transaction in Kafka", Yes, Yes, "", "If the topic has message.timestamp.type=LogAppendTime"},
		{fromKafka + toKafka + strings.Replace(counts, "tumbling: 1m", "session: 10m, max: 1d", 1) + ", grace: 5m }\n", "one transaction in Kafka", Yes, Yes, "", "by more than gap and grace, 15m"},
		{fromKafka + toKafka + strings.Replace(counts, "tumbling: 1m", "hopping: 10m, every: 1m", 1) + " }\n", "one transaction in Kafka", Yes, Yes, "", "is late if none is"},
		{fromKafka + toKafka + counts + ", early: 10s }\n", "one transaction in Kafka", Yes, Yes, "", "the next process may write one again"},
		{fromKafka + toKafka + counts + ", correct: 1h }\n", "one transaction in Kafka", Yes, Yes, "", "less than 1h ago (correct), the result is written again"},
		{fromKafka + toKafka + counts + ", idle: forever }\n", "one transaction in Kafka", Yes, Yes, "", "windows that are open stay open until"},
		{keep("last: { tumbling: 1m }") + fromKafka + toKafka, "one transaction in Kafka", Yes, Yes, "", "the record is in the topic g-state, and takes effect from there, or is superseded"},
		{keep("last: { tumbling: 1m }, late: drop") + fromKafka + toKafka, "one transaction in Kafka", Unless, Yes, "also if no other one of its key took effect", "held records take effect once for each key and window (tumbling 1m0s)"},
		{keep("first: .time, grace: 10s") + fromKafka + toKafka, "one transaction in Kafka", Yes, Yes, "", "older than the newest of its partition by more than the grace of 10s"},
		{keep("first: .time, idle: forever") + fromKafka + toKafka, "one transaction in Kafka", Yes, Yes, "", "records are held until a record of the same partition is newer"},
		{keep("newest: .version") + fromKafka + toKafka, "one transaction in Kafka", Yes, Yes, "", "its version (.version) is in the topic g-state: an older or equal one is superseded"},
		{strings.Replace(fromKafka, "group", "repartition: true, group", 1) + toKafka, "one transaction in Kafka", Yes, Yes, "", "the copy is in g-repartition with its origin"},
		{strings.Replace(fromKafka, "group", "repartition: true, group", 1) + toKafka, "one transaction in Kafka", Yes, Yes, "", "records keep their order by key, not by record key"},
		{strings.Replace(fromKafka, "group", "repartition: true, group", 1) + toKafka + counts + ", grace: 30s }\n", "one transaction in Kafka", Yes, Yes, "", "when every partition of the input has had a record that is newer than the window's end"},
		{strings.Replace(fromKafka, "group", "repartition: true, group", 1) + toKafka + counts + " }\n", "one transaction in Kafka", Yes, Yes, "", "the other partitions decide; if no partition gets new records, each window"},
		{strings.Replace(fromKafka, "group", "repartition: true, group", 1) + toKafka + counts + " }\n", "one transaction in Kafka", Yes, Yes, "", "duplicates with different group keys (.g) are not found"},
		{keep("first: .time, grace: 10s") + strings.Replace(fromKafka, "group", "repartition: true, group", 1) + toKafka, "one transaction in Kafka", Yes, Yes, "", "older than the newest record of the slowest partition of the input by more"},
		{fromFile + "    store: keys\n" + toFile, "one checkpoint on the disk", Yes, Yes, "", "cut to the length of the last checkpoint"},
		{fromHTTP + "    store: keys\n" + toFile, "one checkpoint on the disk", Yes, Yes, "", "gets the same answer"},
		{fromKafka + "    store: keys\n" + toWebhook, "claim, deliver, complete", Yes, Unless, "between the effect and the completion of its key", "claimed again immediately, as attempt 1 with a higher token"},
		{fromKafka + "    store: both\n" + toWebhook, "claim, deliver, complete", Yes, Unless, "between the effect and the completion of its key", "the stack works without it"},
		{fromKafka + "    store: keys\n    on_lease_expired: hold\n" + toWebhook, "claim, deliver, complete", Yes, Yes, "", "the key becomes unknown when its lease ends"},
		{fromKafka + "    store: cache\n" + toWebhook, "claim, deliver, complete", Yes, BestEffort, "failover, eviction and restart may forget keys", ""},
		{fromKafka + "    store: cache\n    on_lease_expired: hold\n" + toWebhook, "claim, deliver, complete", Yes, BestEffort, "may be forgotten", ""},
		{fromFile + "    store: seen\n    lossy: true\n" + toStdout, "filter alone", No, Unless, "about 0.01 of the new messages are dropped", "before the filter has the key"},
		{fromFile + "    store: keys\n    observe: true\n" + toFile, "claim, deliver, complete", Yes, No, "mismatches are delivered", "the pipeline observes"},
		{fromFile + "    store: keys\n    on_failure: { then: drop }\n" + toFile, "one checkpoint on the disk", Unless, Yes, "whose last attempt failed is lost", "it is dropped after its last attempt"},
		{fromFile + "    store: keys\n    on_failure: { then: stop }\n" + toStdout, "claim, deliver, complete", Yes, Unless, "", "the pipeline ends at it"},
		{fromFile + "    store: keys\n    on_store_error: pass\n" + toStdout, "claim, deliver, complete", Yes, Unless, "every repeat has its effect again", "delivered without a decision"},
		{fromKafka + "    store: keys\n    window: 1h\n" + toWebhook, "claim, deliver, complete", Yes, Unless, "after its key was forgotten", "the window is 1h"},
		{strings.Replace(fromKafka, "group", "start: latest, group", 1) + toKafka, "one transaction in Kafka", Unless, Yes, "are never read", ""},
		{fromFile + "    store: keys\n    window: forever\n    parked: { store: db }\n" + toStdout, "claim, deliver, complete", Yes, Unless, "", "in the database of db"},
	} {
		p := promise(t, c.text)
		because := strings.Join(append(append([]string{}, p.NothingLost.Because...), p.NoSecondEffect.Because...), "\n")
		whole := strings.Join(strings.Fields(p.Text()), " ")
		if p.Mode != c.mode || p.NothingLost.Holds != c.lost || p.NoSecondEffect.Holds != c.second || !strings.Contains(because, c.because) || !strings.Contains(whole, c.says) {
			t.Errorf("%s\n%+v\n%s", c.text, p, whole)
		}
		if p.NothingLost.Holds == Yes && p.NothingLost.Because != nil || p.NothingLost.Holds != Yes && p.NothingLost.Because == nil {
			t.Errorf("%s\nan answer and its reasons contradict each other: %+v", c.text, p.NothingLost)
		}
		for _, said := range []string{whole, fmt.Sprintf("%+v", p)} {
			if strings.Contains(strings.ToLower(said), "exactly-once") || strings.Contains(strings.ToLower(said), "exactly once") || strings.Contains(said, "canary-1f7b") {
				t.Errorf("%s\nsays too much: %s", c.text, said)
			}
		}
		if len(p.Crashes) < 4 || len(p.Exceptions) == 0 && !strings.Contains(c.text, "forever") {
			t.Errorf("%s\nincomplete: %+v", c.text, p)
		}
		for _, line := range strings.Split(p.Text(), "\n") {
			if len(line) > width || strings.TrimRight(line, " ") != line {
				t.Errorf("a line is too long or ends with blanks: %q", line)
			}
		}
		var back Promise
		if data, err := json.Marshal(p); err != nil || json.Unmarshal(data, &back) != nil || fmt.Sprintf("%+v", back) != fmt.Sprintf("%+v", *p) {
			t.Errorf("in JSON: %+v", back)
		}
	}
}

// TestExplainNamesTheAttemptOfARepeat: after a process crash, an in-process store
// has forgotten the attempt count of a key. A shared store forgets it an hour
// later.
func TestExplainNamesTheAttemptOfARepeat(t *testing.T) {
	t.Parallel()
	own := []string{"with the same key and a higher token, which stand", "it is claimed again immediately, as attempt 1 with a higher token", "with the same key, attempt 1 and a higher token", "claims end with the process: a repeat after its crash is attempt 1 again"}
	shared := []string{"with the same key and a higher attempt and token, which stand", "waits until the lease ends, at most 30s; then it is claimed again, as attempt 2 with a higher token", "with the same key, attempt 2 and a higher token", "remembered for an hour after its lease ended: a later repeat may be attempt 1 again"}
	held := []string{"the key becomes unknown when its lease ends"}
	for _, c := range []struct {
		store, policy string
		says          []string
		not           [][]string
	}{
		{"keys", "retry", own, [][]string{shared, held}},
		{"own", "retry", own, [][]string{shared, held}},
		{"db", "retry", shared, [][]string{own, held}},
		{"cache", "retry", shared, [][]string{own, held}},
		{"both", "retry", shared, [][]string{own, held}},
		{"keys", "hold", held, [][]string{own, shared}},
		{"db", "hold", held, [][]string{own, shared}},
	} {
		p := promise(t, fromKafka+"    store: "+c.store+"\n    on_lease_expired: "+c.policy+"\n"+toKafka)
		text := strings.Join(strings.Fields(p.Text()), " ")
		for _, part := range c.says {
			if !strings.Contains(text, part) {
				t.Errorf("store %s, %s: it does not say %q:\n%s", c.store, c.policy, part, text)
			}
		}
		for _, part := range slices.Concat(c.not...) {
			if strings.Contains(text, part) {
				t.Errorf("store %s, %s: it says %q", c.store, c.policy, part)
			}
		}
	}
}

// TestExplainSaysThatObserveDeliversEveryMessage: a message that it would
// drop is not lost. A duplicate has its effect again. A message without a key is
// treated as usual.
func TestExplainSaysThatObserveDeliversEveryMessage(t *testing.T) {
	t.Parallel()
	drops := "    on_late: drop\n    on_mismatch: drop\n"
	id := "    key: { id: .id, on_missing: %s }\n"
	for _, c := range []struct{ text, missing, lost string }{
		{fromFile + "    store: keys\n" + drops + toFile, "park", Yes},
		{fromFile + "    store: keys\n    on_lease_expired: hold\n" + toFile, "drop", Unless},
		{fromHTTP + "    store: db\n" + drops + toWebhook, "fail", Yes},
		{fromKafka + "    store: cache\n" + toRows, "pass", Yes},
		{fromFile + "    store: seen\n    lossy: true\n" + toFile, "hash", Yes},
	} {
		text := strings.Replace(stores, "    key: { id: .id }\n", fmt.Sprintf(id, c.missing), 1)
		f, err := kind.All().Parse("c.yaml", []byte(text+c.text+"    observe: true\n"), func(string) string { return "" })
		if err != nil {
			t.Fatalf("%v\nin:\n%s", err, c.text)
		}
		p := Explain(f, f.Pipelines[0])
		said := strings.Join(strings.Fields(p.Text()), " ")
		if p.NothingLost.Holds != c.lost || p.NoSecondEffect.Holds != No {
			t.Errorf("%s\nlost %+v, second %+v", c.text, p.NothingLost, p.NoSecondEffect)
		}
		wants := []string{"is a duplicate, and has its effect again all the same", "duplicates, late messages and mismatches are delivered"}
		if !strings.Contains(c.text, "lossy") {
			wants = append(wants, "the store does not answer: messages are delivered without a decision")
		}
		if c.missing == "park" || c.missing == "drop" || c.missing == "fail" {
			wants = append(wants, "a message without a key is not delivered, although the pipeline observes: on_missing: "+c.missing)
		}
		for _, want := range wants {
			if !strings.Contains(said, want) {
				t.Errorf("%s\ndoes not say %q:\n%s", c.text, want, said)
			}
		}
		for _, wrong := range []string{"stands still; nothing", "acknowledged without effect", "until an operator resolves it: semel", "that uses the key of another is given up", "older than the window is given up", "are dropped", "is dropped too", "gets the same answer"} {
			if strings.Contains(said, wrong) {
				t.Errorf("%s\nsays %q:\n%s", c.text, wrong, said)
			}
		}
	}
}

func TestExplainSaysThatRecordsWithoutKeyHeadersCannotBeRecognised(t *testing.T) {
	t.Parallel()
	bare := strings.Replace(toKafka, "topic: out", "topic: out, key_headers: false", 1)
	text := strings.Join(strings.Fields(promise(t, fromKafka+"    store: keys\n"+bare).Text()), " ")
	if want := "of which the record says nothing (key_headers: false)"; !strings.Contains(text, want) || strings.Contains(text, "semel-token") {
		t.Errorf("it does not say %q:\n%s", want, text)
	}
}

func TestExplainSaysWhatARuleIgnores(t *testing.T) {
	t.Parallel()
	const number = `the spelling of a number, as 7, 7.0 and "7"`
	for rule, want := range map[string]string{
		"lower(trim(.id))":             "lower(trim(.id)) (ignores upper and lower case, and white space at the ends), scope p",
		"[.a, { all: [number(.id)] }]": "first of .a, number(.id) (ignores " + number + "), scope p",
		".id":                          ".id, scope p",
	} {
		all := strings.Replace(stores, "id: .id", "id: "+rule, 1) + fromKafka + toKafka
		f, err := kind.All().Parse("c.yaml", []byte(all), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		if got := Explain(f, f.Pipelines[0]).Keys; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", rule, got, want)
		}
	}
}

// TestExplainSaysHowLongAMessageWaitsForAHeldKey checks how long a message waits for the key.
func TestExplainSaysHowLongAMessageWaitsForAHeldKey(t *testing.T) {
	t.Parallel()
	const at, waits = "another delivery holds the key, and does not end", "the message waits until the key is done or free, without a limit"
	for text, want := range map[string]string{
		fromKafka + "    store: db\n" + toWebhook:                    waits + ". It is not parked, because its effect may be happening. Other keys continue, but no offset behind it is committed. After 5s the log names",
		fromFile + "    store: db\n" + toRows:                        waits + ". It is not parked, because its effect may be happening. Other keys continue, but no position behind it is kept. After 5s the log names",
		fromHTTP + "    store: db\n" + toWebhook:                     "after 5s its sender gets a 503 and can send it again",
		fromKafka + toKafka:                                          "",
		fromKafka + "    store: db\n    observe: true\n" + toWebhook: "",
		fromFile + "    store: seen\n    lossy: true\n" + toStdout:   "",
	} {
		got := ""
		for _, c := range promise(t, text).Crashes {
			if c.At == at {
				got = c.Then
			}
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s\ngot  %s\nwant %s", text, got, want)
		}
	}
}

// TestExplainOmitsLateRecordsWhereNoneAreDelivered has a clock by which no
// record is late, and a policy that delivers no late record.
func TestExplainOmitsLateRecordsWhereNoneAreDelivered(t *testing.T) {
	t.Parallel()
	for _, text := range []string{fromKafka + toKafka, fromKafka + toKafka + "    transaction: { time: event }\n    on_late: park\n"} {
		if said := promise(t, text).Text(); strings.Contains(said, "on_late: run") {
			t.Errorf("%s\nsays %s", text, said)
		}
	}
}

func TestExplainNamesSourceSinkAndKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		fromKafka + "    store: both\n" + toWebhook:                                  "p: kafka in as g → webhook POST https://u:[hidden]@example.com/x\n  commits by        claim, deliver, complete\n  keys              .id, scope p, in both (tiered over db, postgres), remembered for 7d\n",
		fromHTTP + "    store: db\n" + toRows:                                        "p: http 127.0.0.1:80/ → postgres table t\n",
		fromFile + "    store: keys\n" + toFile:                                      "p: file in → file out\n",
		strings.Replace(fromKafka, "group", "repartition: true, group", 1) + toKafka: "p: kafka in as g, by key through g-repartition → kafka out\n",
		strings.Replace(fromKafka, "[in]", "[in, on]", 1) + toKafka:                  "p: kafka in, on as g → kafka out\n  commits by        one transaction in Kafka\n  keys              .id, scope p, in Kafka, topics g-keys-in, g-keys-on, remembered for 7d\n",
		fromKafka + toKafka: "p: kafka in as g → kafka out\n  commits by        one transaction in Kafka\n  keys              .id, scope p, in Kafka, topic g-keys, remembered for 7d\n",
	} {
		if got := promise(t, text).Text(); !strings.HasPrefix(got, want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

// TestExplainListsTheExceptionsOfEachKeepRule compares what is said of keys and copies.
func TestExplainListsTheExceptionsOfEachKeepRule(t *testing.T) {
	t.Parallel()
	const stage, forgotten, remembered = "a repartition stage", "after its key was forgotten has its effect again", "remembered for 7d"
	for rule, said := range map[string][]string{
		"last: { tumbling: 1m }": {stage}, // it has no keys
		"first: .time":           {stage, forgotten, remembered},
		"newest: .version":       {stage, forgotten, remembered},
	} {
		text := strings.Join(strings.Fields(promise(t, keep(rule)+fromKafka+toKafka).Text()), " ")
		for _, part := range []string{stage, forgotten, remembered} {
			if want := slices.Contains(said, part); strings.Contains(text, part) != want {
				t.Errorf("%s says %q: want %v\n%s", rule, part, want, text)
			}
		}
	}
	// No sample is read of record keys, whose partitions producers choose.
	f, err := kind.All().Parse("c.yaml", []byte(strings.Replace(stores, "id: .id", "id: record-key, keep: { last: { tumbling: 1m } }", 1)+fromKafka+toKafka), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(Explain(f, f.Pipelines[0]).Text()), " ")
	if strings.Contains(text, "a sample") || !strings.Contains(text, "each partition keeps one: "+stage) {
		t.Errorf("of record keys it says\n%s", text)
	}
}
