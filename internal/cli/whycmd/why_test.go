package whycmd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// servers are the real servers that tests share.
var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// outcome is the result of a program run.
type outcome struct {
	status         int
	stdout, stderr string
}

// check compares a run with the expected status. Each text must be on stderr. Without
// texts, stderr must be empty.
func (o outcome) check(t *testing.T, status int, stderr ...string) {
	t.Helper()
	if o.status != status || len(stderr) == 0 && o.stderr != "" {
		t.Errorf("exit status %d, want %d; stderr: %s", o.status, status, o.stderr)
	}
	for _, text := range stderr {
		if !strings.Contains(o.stderr, text) {
			t.Errorf("stderr lacks %q: %s", text, o.stderr)
		}
	}
}

// has reports the texts that stdout lacks.
func (o outcome) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(o.stdout, text) {
			t.Errorf("stdout lacks %q:\n%s%s", text, o.stdout, o.stderr)
		}
	}
}

// answer reads the object that --json prints.
func (o outcome) answer(t *testing.T) (a facts.Answer) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.stdout), &a); err != nil || strings.Count(o.stdout, "\n") != 1 {
		t.Fatalf("not one object: %v: %s%s", err, o.stdout, o.stderr)
	}
	return a
}

// run runs the program with input on stdin.
func run(t *testing.T, input string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := cli.Main(t.Context(), kind.All(), args, strings.NewReader(input), &stdout, &stderr, func(string) string { return "" })
	return outcome{status, stdout.String(), stderr.String()}
}

// config writes a configuration. DIR stands for its directory.
func config(t *testing.T, text string) (file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// claim claims keys in a store of a configuration. Those without Done become unknown,
// because their holder is lost immediately.
func claim(t *testing.T, file, store string, claims ...semel.ClaimRequest) {
	t.Helper()
	conf, err := kind.All().Read(file, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	s, opened, err := app.OpenStore(t.Context(), conf, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range claims {
		c := &claims[i]
		c.Owner, c.Window = semel.Owner{Name: "worker-7", Nonce: uint64(i + 1)}, semel.Forever
		if !c.Done {
			c.Lease, c.Hold = 1, true
		}
	}
	answers := make([]semel.ClaimAnswer, len(claims))
	if err := s.Claim(t.Context(), claims, answers); err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if a.Decision != semel.Fresh {
			t.Fatalf("%+v", a)
		}
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
}

// complete makes a key done with a result.
func complete(t *testing.T, file, store string, key semel.Key, result string) {
	t.Helper()
	conf, err := kind.All().Read(file, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	s, opened, err := app.OpenStore(t.Context(), conf, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	claimed, answers := make([]semel.ClaimAnswer, 1), make([]error, 1)
	if err := s.Claim(t.Context(), []semel.ClaimRequest{{Key: key, Owner: semel.Owner{Name: "w", Nonce: 1}, Lease: time.Minute, Window: semel.Forever, Fingerprint: semel.Fingerprint{1, 2, 3}}}, claimed); err != nil {
		t.Fatal(err)
	}
	request := semel.CompleteRequest{Key: key, Token: claimed[0].Claim.Token, Window: semel.Forever, Result: semel.Result{Kind: semel.Value, Data: []byte(result)}}
	if err := s.Complete(t.Context(), []semel.CompleteRequest{request}, answers); err != nil || answers[0] != nil {
		t.Fatal(err, answers[0])
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
}

// park parks messages in the directory of a configuration.
func park(t *testing.T, file string, messages ...pipeline.Parked) {
	t.Helper()
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(filepath.Dir(file), "parked"))
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.Park(t.Context(), messages); err != nil {
		t.Fatal(err)
	}
	if err := letters.Close(); err != nil {
		t.Fatal(err)
	}
}

// orders is a configuration of which one store has keys and messages are parked.
func orders(t *testing.T) (file string) {
	file = config(t, `
stores:
  ledger: { embedded: { path: DIR/ledger } }
  gone: { embedded: { path: DIR/gone } }
  mem: { memory: {} }
pipelines:
  orders: { source: { file: { paths: [in] } }, key: { id: .id, scope: default }, store: ledger, sink: { file: { path: out } }, parked: { path: DIR/parked } }
  other: { source: { file: { paths: [in] } }, key: { id: .id }, store: gone, sink: { file: { path: out2 } }, parked: { path: DIR/never } }
  third: { source: { file: { paths: [in] } }, key: { id: .id }, store: mem, sink: { file: { path: out3 } }, parked: { path: DIR/never } }
`)
	in := func(id string) semel.Key { return semel.Key{Scope: "default", ID: id} }
	claim(t, file, "ledger", semel.ClaimRequest{Key: in("42"), Done: true}, semel.ClaimRequest{Key: in("\x00n42"), Done: true}, semel.ClaimRequest{Key: in("order-2")},
		semel.ClaimRequest{Key: in(string(key.AppendComposite(nil, "eu", "7"))), Done: true})
	complete(t, file, "ledger", in("order-1"), "receipt")
	park(t, file,
		pipeline.Parked{ID: "one", Pipeline: "orders", Key: in("order-2"), Reason: "unknown", Error: "no answer", Attempts: 3, At: time.Now()},
		pipeline.Parked{ID: "two", Pipeline: "orders", Key: in("order-9"), Reason: "attempts", Attempts: 8, At: time.Now()})
	return file
}

func TestWhySaysWhyAMessageWasDroppedOrPassed(t *testing.T) {
	t.Parallel()
	file := orders(t)
	ask := func(words ...string) outcome {
		return run(t, "", append([]string{"why", "--config", file}, words...)...)
	}
	got := ask("order-1")
	got.check(t, term.ExitDone)
	got.has(t,
		"pipeline     orders\nstore        ledger\nkey          order-1\nscope        default\nstate        done\n", "result ", "fingerprint ",
		" UTC  store ledger, pipeline orders: first seen; now done, result: value of 7 bytes\n",
		"\nnext time    it is a duplicate: it is acknowledged without effect, and gets the stored result\nto process its message again:\n  semel keys rm order-1 ",
		"\n\nlooked in\n  store ledger, pipeline orders: scope default\n",
		"\n  store gone, pipeline other: not seen: store gone: "+filepath.Join(filepath.Dir(file), "gone")+": there is no store in this directory\n",
		"\n  store mem, pipeline third: not seen: mem lives in the memory of the process that uses it",
		"\n  source of orders (file "+filepath.Join(filepath.Dir(file), "in")+"): it cannot be searched\n")
	if strings.Contains(got.stdout, "\nparked ") || strings.Contains(got.stdout, "nothing is known") {
		t.Errorf("no message of this key was parked:\n%s", got.stdout)
	}

	answer := ask("order-2", "--json").answer(t)
	if answer.Record.State != "unknown" || !strings.Contains(answer.Next, "semel keys resolve") || len(answer.Parked) != 1 || answer.Parked[0].Reason != "unknown" || answer.Parked[0].Attempts != 3 {
		t.Errorf("%+v", answer)
	}
	if string(answer.Key) != `"order-2"` || *answer.Scope != "default" || answer.Pipeline != "orders" || answer.Store != "ledger" || answer.Parked[0].Place != "parked messages of orders" || answer.Others != nil {
		t.Errorf("%+v", answer)
	}
	if len(answer.Events) != 2 || answer.Events[0].Time > answer.Events[1].Time || answer.Events[1].What != "parked as one after 3 attempts: unknown: no answer" {
		t.Errorf("events %+v", answer.Events)
	}
	want := []string{"semel keys resolve order-2 --as done ", "semel keys resolve order-2 --as absent ", "semel parked retry one --config " + file + " --pipeline orders"}
	if !slices.EqualFunc(answer.Commands, want, strings.HasPrefix) || len(answer.Looked) == 0 {
		t.Errorf("commands %q, looked %q", answer.Commands, answer.Looked)
	}

	got = ask("order-9", "--store-name", "ledger")
	got.check(t, term.ExitDone)
	got.has(t, "it is processed: the store has no record of the key")
	if strings.Contains(got.stdout, "pipeline") {
		t.Errorf("a store alone: %+v", got)
	}
	got = ask("order-9")
	got.has(t, "state        absent\nparked       two, since 20", " UTC, after 8 attempts: attempts\n", "\nto process the parked message two again:\n  semel parked retry two ")
	if strings.Contains(got.stdout, "nothing is known") {
		t.Errorf("%+v", got)
	}
	if got = ask("42", "--store-name", "ledger"); strings.Count(got.stdout, "state        done\n") != 2 {
		t.Errorf("a string and a number: %+v", got)
	}
	if answer = ask("42", "--json").answer(t); len(answer.Others) != 1 || string(answer.Key) != `"42"` || string(answer.Others[0].Key) != "42" || answer.Others[0].Events != nil {
		t.Errorf("a string and a number: %+v", answer)
	}
	if got = ask("42", "--json-id", "--store-name", "ledger"); strings.Count(got.stdout, "state        done\n") != 1 {
		t.Errorf("the number alone: %+v", got)
	}
	ask("eu", "7").has(t, `key          ["eu","7"]`, "state        done\n")
	ask("order-1", "--scope", "elsewhere", "--store-name", "ledger").has(t, "state        absent\n", "\nelsewhere    it is in scope default: --scope default\n")

	got = ask("nothing")
	got.check(t, term.ExitDone)
	got.has(t, "\n\nlooked in\n")
	if !strings.HasPrefix(got.stdout, "nothing is known of this key\n") {
		t.Errorf("%s", got.stdout)
	}
	if answer = ask("nothing", "--json").answer(t); answer.Record.State != "absent" || string(answer.Key) != `"nothing"` || answer.Events != nil || answer.Parked != nil || answer.Commands != nil {
		t.Errorf("%+v", answer)
	}
}

func TestKeysShowOfAParkedKeyPointsToWhy(t *testing.T) {
	t.Parallel()
	file := orders(t)
	show := func(id string) outcome {
		return run(t, "", "keys", "show", id, "--config", file, "--store-name", "ledger")
	}
	why := func(id string) string {
		return "semel why " + id + " --config " + file + " --pipeline orders --scope default\n"
	}
	show("order-2").has(t, "a message with this key is parked; to see all about it:\n  "+why("order-2"))
	show("order-9").check(t, term.ExitFailed, "order-9 is absent: ", ": a message with this key is parked: "+why("order-9"))
	if got := show("order-1"); strings.Contains(got.stdout, "semel why") {
		t.Errorf("no message of this key is parked: %s", got.stdout)
	}
	run(t, "", strings.Fields(why("order-2"))[1:]...).has(t, "parked       one, since ")
}

func TestWhyAsksOnePipeline(t *testing.T) {
	t.Parallel()
	file := orders(t)
	answer := run(t, "", "why", "order-1", "--config", file, "--pipeline", "orders", "--json").answer(t)
	if answer.Record.State != "done" || slices.ContainsFunc(answer.Looked, func(place string) bool { return !strings.Contains(place, "orders") }) {
		t.Errorf("%+v", answer)
	}
}

func TestWhyFindsAKeyByItsDigest(t *testing.T) {
	t.Parallel()
	file := orders(t)
	digest := run(t, "", "why", "order-2", "--config", file, "--json").answer(t).Record.Digest
	got := run(t, "", "why", "--digest", digest, "--config", file)
	got.check(t, term.ExitDone)
	got.has(t, "state        unknown\n", "digest       "+digest+"\n", "next time    it is not processed (a pipeline parks it, a request gets 409): its effect may have happened", "\n  store ledger: by the digest\n")
	run(t, "", "keys", "resolve", "--digest", digest, "--as", "absent", "--reason", "it is not in the list", "--config", file, "--store-name", "ledger").check(t, term.ExitDone, "resolved")
	run(t, "", "why", "--digest", digest, "--config", file).has(t, "audit log of store ledger: resolve, from unknown to absent: done, by ", ": it is not in the list\n")
	run(t, "", "why", "--digest", digest, "--config", file, "--scope", "x").check(t, term.ExitUsage, "--digest and --scope exclude each other")
	run(t, "", "why", "x", "--digest", digest, "--config", file).check(t, term.ExitUsage, "--digest and an ID exclude each other")
}

func TestWhyRefusesWrongUsage(t *testing.T) {
	t.Parallel()
	file := orders(t)
	for _, c := range []struct {
		args string
		want []string
	}{
		{"a", []string{"--config FILE is missing: name the configuration; for a store of semel dedup write semel keys show KEY --store DIR\n"}},
		{"--config FILE", []string{"KEY is missing: name the key, or --message FILE, or --digest DIGEST"}},
		{"a --config FILE --store-name legder", []string{"has no such store: did you mean ledger?"}},
		{"a --config FILE --pipeline order", []string{"--pipeline order: FILE has no such pipeline: did you mean orders?"}},
		{"a --config FILE --pipeline orders --store-name ledger", []string{"--pipeline and --store-name exclude each other"}},
		{"a --config FILE --since 0s --messages 0 --timeout 0s", []string{"--since must be above 0", "--messages must be above 0", "--timeout must be above 0"}},
		{"a --config FILE --message -", []string{"--message and KEY exclude each other"}},
		{"a --config FILE --header a=b", []string{"--header is for --message"}},
		{"--message - --config FILE --store-name ledger", []string{"--message and --store-name exclude each other"}},
		{"--message - --config FILE", []string{"--pipeline NAME is missing: --message takes the key rule of one pipeline, and FILE names orders, other, third"}},
		{"--message none --config FILE --pipeline orders", []string{"--message none: there is no such file"}},
		{"--message - --config FILE --pipeline orders --header a", []string{`--header "a": write NAME=VALUE`}},
		{"a --config FILE --no-env", []string{"unknown flag --no-env"}},
	} {
		want := strings.Split(strings.ReplaceAll(strings.Join(c.want, "\x00"), "FILE has", file+" has"), "\x00")
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], "and FILE names", "and "+file+" names")
		}
		run(t, "", append([]string{"why"}, strings.Fields(strings.ReplaceAll(c.args, "FILE", file))...)...).check(t, term.ExitUsage, want...)
	}
}

func TestVerbsAndFlagsOfOldGuidesNameWhy(t *testing.T) {
	t.Parallel()
	run(t, "", "trace", "--config", "x", "--key", "a").check(t, term.ExitUsage, `unknown verb "trace": did you mean why?`)
	file := orders(t)
	got := run(t, "", "explain", file, "--key", "order-1")
	got.check(t, term.ExitUsage, "unknown flag --key: did you mean semel why?\n")
	if strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("the value of the flag is taken for a pipeline: %s", got.stderr)
	}
}

func TestWhyFindsTheKeyOfAMessage(t *testing.T) {
	t.Parallel()
	file := config(t, `
stores: { ledger: { embedded: { path: DIR/ledger } } }
pipelines:
  body: { source: { file: { paths: [in] } }, key: { id: .id, on_missing: hash }, store: ledger, sink: { stdout: {} }, parked: { path: DIR/parked } }
  header: { source: { nats: { servers: ["127.0.0.1:1"], stream: s, consumer: c } }, key: { id: "header:Order" }, store: ledger, sink: { stdout: {} }, parked: { path: DIR/parked } }
`)
	content, err := key.AppendContent(nil, []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	claim(t, file, "ledger", semel.ClaimRequest{Key: semel.Key{Scope: "body", ID: "order-1"}, Done: true}, semel.ClaimRequest{Key: semel.Key{Scope: "body", ID: string(content)}, Done: true},
		semel.ClaimRequest{Key: semel.Key{Scope: "header", ID: "x=7"}, Done: true})
	message := filepath.Join(filepath.Dir(file), "message.json")
	if err := os.WriteFile(message, []byte(`{"id":"order-1"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t, "", "why", "--message", message, "--config", file, "--pipeline", "body")
	got.check(t, term.ExitDone)
	got.has(t, "key          order-1\nscope        body\nstate        done\n")
	got = run(t, `{ "a": 1 }`+"\n", "why", "--message", "-", "--config", file, "--pipeline", "body")
	got.check(t, term.ExitDone)
	got.has(t, "key          sha256:", "state        done\n")
	got = run(t, "any body", "why", "--message", "-", "--header", "Order=x=7", "--config", file, "--pipeline", "header", "--timeout", "200ms", "--json")
	got.check(t, term.ExitFailed, "source of pipeline header: ") // no server has its messages
	if answer := got.answer(t); string(answer.Key) != `"x=7"` || answer.Record.State != "done" {
		t.Errorf("%+v", answer)
	}
	run(t, "any body", "why", "--message", "-", "--config", file, "--pipeline", "header").check(t, term.ExitUsage, "--message -: the message has no key by the rule header:Order of pipeline header: ")
}

func TestWhyFindsTheKeyOfACaller(t *testing.T) {
	t.Parallel()
	file := config(t, `
stores: { keys: { embedded: { path: DIR/keys } } }
proxy: { store: keys, upstream: "http://127.0.0.1:1", scope: "header:X-Customer" }
`)
	claim(t, file, "keys", semel.ClaimRequest{Key: httpidem.Key("http", "alice", "k-1"), Done: true})
	got := run(t, "", "why", "k-1", "--caller", "alice", "--config", file)
	got.check(t, term.ExitDone)
	got.has(t, "store        keys\n", "scope        http\nstate        done\n")
	run(t, "", "why", "k-1", "--config", file).has(t, "nothing is known of this key\n",
		"\n  store keys: not for requests of the proxy, whose keys belong to callers: add --caller NAME, which semel keys show KEY finds\n")
	run(t, "", "why", "k-1", "--caller", "alice", "--store-name", "keys", "--config", file).has(t, "state        done\n")
	run(t, "", "why", "k-1", "k-2", "--caller", "alice", "--config", file).check(t, term.ExitUsage, "--caller takes one Idempotency-Key")
}

// TestWhyFindsTheKeysOfAUser has a proxy whose callers are user names with digests of passwords.
func TestWhyFindsTheKeysOfAUser(t *testing.T) {
	t.Parallel()
	file := config(t, `
stores: { keys: { embedded: { path: DIR/keys } } }
proxy: { store: keys, upstream: "http://127.0.0.1:1", scope: basic }
`)
	one, two := "alice:"+strings.Repeat("01", 16), "alice:"+strings.Repeat("2f", 16)
	claim(t, file, "keys", semel.ClaimRequest{Key: httpidem.Key("http", one, "k-1"), Done: true}, semel.ClaimRequest{Key: httpidem.Key("http", two, "k-1"), Done: true},
		semel.ClaimRequest{Key: httpidem.Key("http", "bob:"+strings.Repeat("01", 16), "k-1"), Done: true}, semel.ClaimRequest{Key: httpidem.Key("http", one, "k-2"), Done: true})
	got := run(t, "", "why", "k-1", "--caller", "alice", "--config", file)
	got.check(t, term.ExitDone)
	got.has(t, one+":k-1\n", two+":k-1\n", "  store keys: the user alice with any password: 2 keys, of the ids that the store keeps\n")
	if n := strings.Count(got.stdout, "state        done\n"); n != 2 || strings.Contains(got.stdout, "bob") {
		t.Errorf("%d records: %s", n, got.stdout)
	}
	run(t, "", "why", "k-2", "--caller", "alice", "--config", file).has(t, "state        done\n", "1 key,")
	run(t, "", "why", "k-1", "--caller", one, "--config", file).has(t, "state        done\n")
	run(t, "", "why", "k-2", "--caller", "bob", "--config", file).has(t, "nothing is known of this key\n", "0 keys,")
}

// TestWhyAsksTheOtherPlacesIfOneFails has a database that does not answer, and keys in Redis
// and PostgreSQL.
func TestWhyAsksTheOtherPlacesIfOneFails(t *testing.T) {
	t.Parallel()
	database, cache := servers.Database(t), servers.Redis(t)
	file := config(t, fmt.Sprintf(`
stores:
  db: { postgres: { dsn: %q } }
  cache: { redis: { url: %q, prefix: %q } }
  down: { postgres: { dsn: "postgres://127.0.0.1:1/x" } }
pipelines:
  one: { source: { file: { paths: [in] } }, key: { id: .id }, store: down, sink: { stdout: {} }, parked: { path: DIR/parked } }
  two: { source: { file: { paths: [in] } }, key: { id: .id }, store: db, sink: { stdout: {} }, parked: { path: DIR/parked } }
  three: { source: { file: { paths: [in] } }, key: { id: .id }, store: cache, sink: { stdout: {} }, parked: { path: DIR/parked } }
`, database, cache, servicestest.Topic()))
	run(t, "", "migrate", "up", "--config", file, "--store-name", "db").check(t, term.ExitDone, "")
	claim(t, file, "db", semel.ClaimRequest{Key: semel.Key{Scope: "two", ID: "a"}, Done: true})
	claim(t, file, "cache", semel.ClaimRequest{Key: semel.Key{Scope: "three", ID: "a"}})
	got := run(t, "", "why", "a", "--config", file, "--json")
	got.check(t, term.ExitFailed, "open the store down: ")
	answer := got.answer(t)
	if answer.Pipeline != "two" || answer.Record.State != "done" || len(answer.Others) != 1 || answer.Others[0].Pipeline != "three" || answer.Others[0].Record.State != "unknown" {
		t.Errorf("%+v", answer)
	}
	if len(answer.Events) != 2 || len(answer.Others[0].Commands) != 2 || answer.Others[0].Next == "" {
		t.Errorf("%+v", answer)
	}
	for _, place := range []string{"store down, pipeline one: it could not be asked", "journal of store cache: not asked: name the running process with --admin ADDRESS"} {
		if !slices.Contains(answer.Looked, place) {
			t.Errorf("looked in %q, want %q", answer.Looked, place)
		}
	}
	park(t, file, pipeline.Parked{ID: "one", Pipeline: "three", Key: semel.Key{Scope: "three", ID: "a"}, Reason: "unknown", At: time.Now()})
	got = run(t, "", "why", "a", "--config", file)
	got.has(t, "pipeline     two\n", "\nparked       one by three, since ", "\n\npipeline     three\n")
	got = run(t, "", "why", "b", "--config", file)
	got.check(t, term.ExitFailed, "open the store down: ")
	if !strings.HasPrefix(got.stdout, "nothing is known of this key in the places that could be asked\n") {
		t.Errorf("%s", got.stdout)
	}
}
