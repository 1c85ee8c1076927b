package cli

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/pipelinecmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestLintTellsWithPlaceCostAndRemedy(t *testing.T) {
	t.Parallel()
	const fine = "pipelines:\n  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { file: { path: out } } }\n"
	const keys = "stores: { keys: { embedded: { path: keys } } }\n"
	file := func(text string) string { return writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), text) }

	clean := file(keys + fine)
	run(t, "", "lint", clean).check(t, term.ExitDone, "1 file: 0 to note, 0 with a warning, 0 broken")
	run(t, "", "lint", clean, "--quiet").check(t, term.ExitDone)

	weak := file(keys + strings.Replace(fine, "sink", "on_failure: { then: drop }, sink", 1))
	got := run(t, "", "lint", clean, weak)
	got.check(t, term.ExitFound, "2 files: 0 to note, 1 with a warning, 0 broken")
	if want := weak + ":3:94: warning: pipelines.p.on_failure.then: drop: a message whose last attempt failed is lost: write then: park\n"; got.stdout != want {
		t.Errorf("got  %q\nwant %q", got.stdout, want)
	}
	got = run(t, "", "lint", weak, "--json")
	var line pipelinecmd.LintLine
	if err := json.Unmarshal([]byte(got.stdout), &line); err != nil || got.status != term.ExitFound ||
		line != (pipelinecmd.LintLine{File: weak, Line: 3, Column: 94, Severity: "warning", Pipeline: "p", Subject: "pipelines.p.on_failure.then", Found: "drop", Risk: "loss", Cost: "a message whose last attempt failed is lost", Remedy: "write then: park"}) {
		t.Errorf("%v %+v", err, line)
	}

	broken := file(keys + strings.Replace(fine, ".id", "offset", 1))
	if got = run(t, "", "lint", broken); got.status != term.ExitFound || !strings.Contains(got.stdout, ":3:54: broken: pipelines.p.key.id: offset is not stable: ") {
		t.Errorf("%+v", got)
	}

	wrong := file("stores: { keys: { memroy: {} } }\npipelines: { p: { windwo: 1d } }\n")
	got = run(t, "", "lint", wrong, weak)
	got.check(t, term.ExitUsage, wrong+":1:19: unknown field stores.keys.memroy: did you mean memory?\n", "did you mean window?\n")
	if !strings.Contains(got.stdout, "on_failure") || strings.Count(got.stderr, "\n") != 5 {
		t.Errorf("all that is wrong is reported at once: %+v", got)
	}
	run(t, "", "lint").check(t, term.ExitUsage, "semel lint: FILE is missing: name the configuration\n")
	run(t, "", "lint", "none.yaml").check(t, term.ExitUsage, "semel lint: none.yaml: ")
}

func TestExplainPrintsThePromise(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), pipelinesExample+`  hooks:
    source: { http: { listen: "127.0.0.1:80" } }
    key: { id: .id }
    store: ledger
    sink: { webhook: { url: "https://u:canary-5d1e@example.com" } }
`)
	got := run(t, "", "explain", file)
	got.check(t, term.ExitDone)
	if !strings.Contains(got.stdout, "\n  commits by        one checkpoint on the disk\n") || !strings.Contains(got.stdout, "\n\nhooks: http 127.0.0.1:80/ → webhook POST https://u:[hidden]@example.com\n") {
		t.Errorf("%s", got.stdout)
	}
	got = run(t, "", "explain", file, "hooks", "--json")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	var promise map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &promise); err != nil || len(lines) != 1 || got.status != term.ExitDone {
		t.Fatal(err, got)
	}
	for _, name := range []string{"pipeline", "from", "to", "keys", "mode", "nothing_lost", "no_second_effect", "window", "exceptions", "crashes"} {
		if promise[name] == nil {
			t.Errorf("the promise lacks %s: %s", name, lines[0])
		}
	}
	if strings.Contains(got.stdout, "canary-5d1e") {
		t.Errorf("a secret is shown: %s", got.stdout)
	}
	run(t, "", "explain", file, "hoks").check(t, term.ExitUsage, "has no such pipeline or route: did you mean hooks?")
	run(t, "", "explain", file, "a", "b").check(t, term.ExitUsage, `unexpected argument "b"`)
	run(t, "", "explain").check(t, term.ExitUsage, "FILE is missing: name the configuration, or --config FILE --key ID")
	stores := writeFile(t, filepath.Join(t.TempDir(), "s.yaml"), "stores: { a: { memory: {} } }")
	run(t, "", "explain", stores).check(t, term.ExitUsage, "it names no pipeline")
	proxy := writeFile(t, filepath.Join(t.TempDir(), "api.yaml"), "stores: { a: { memory: {} } }\nproxy: { store: a, scope: global, upstream: \"http://127.0.0.1:1\" }")
	run(t, "", "run", proxy).check(t, term.ExitUsage, "semel proxy "+proxy+" runs it, and semel keys show KEY --caller CALLER --config "+proxy+" shows a key")
}

func TestExplainPrintsAPageAndAFigure(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), pipelinesExample)
	got := run(t, "", "explain", file, "--format", "markdown")
	got.check(t, term.ExitDone)
	for _, want := range []string{
		"# Pipeline lines\n\nFrom file ", "| commits by | one checkpoint on the disk |\n", "| nothing lost | yes |\n",
		"\n## Exceptions\n\n- ", "\n## Crashes and failures\n\n| moment | outcome of the message |\n|---|---|\n| before the checkpoint | ",
		"\n```mermaid\nflowchart TD\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("the page lacks %q:\n%s", want, got.stdout)
		}
	}
	figure := run(t, "", "explain", file, "lines", "--format", "mermaid")
	figure.check(t, term.ExitDone)
	if !strings.HasPrefix(figure.stdout, "flowchart TD\n") || !strings.HasSuffix(got.stdout, "```mermaid\n"+figure.stdout+"```\n") {
		t.Errorf("the figure of the page is another one:\n%s", figure.stdout)
	}
	// The moments are in the order of the commit, and each has its outcome.
	at := 0
	for _, want := range []string{"pipeline[", "m1[\"before the checkpoint\"]", "pipeline --> m1", "m1 -.->|crash| o1", "m2[\"at the checkpoint\"]", "m1 --> m2", "m4[\"after the acknowledgement\"]", "m4 -.->|crash| o4", "m5{{\"the sink cannot be reached\"}}", "pipeline -.-> m5 -.-> o5"} {
		next := strings.Index(figure.stdout[at:], want)
		if next < 0 {
			t.Fatalf("no %q after byte %d:\n%s", want, at, figure.stdout)
		}
		at += next
	}
	if text := run(t, "", "explain", file, "--format", "text"); text.stdout != run(t, "", "explain", file).stdout {
		t.Errorf("--format text: %+v", text)
	}
	if json := run(t, "", "explain", file, "--format", "json"); json.stdout != run(t, "", "explain", file, "--json").stdout {
		t.Errorf("--format json: %+v", json)
	}
	run(t, "", "explain", file, "--format", "markdwn").check(t, term.ExitUsage, `--format "markdwn": did you mean markdown?`)
	run(t, "", "explain", file, "--format", "mermaid", "--json").check(t, term.ExitUsage, "--format mermaid and --json exclude each other")
	run(t, "", "explain", "--config", file, "--key", "x", "--format", "mermaid").check(t, term.ExitUsage, "--format is for explain FILE")
}

func TestExplainSaysWhyAMessageWasDroppedOrPassed(t *testing.T) {
	t.Parallel()
	ledger := mixedStore(t)
	file := writeFile(t, filepath.Join(filepath.Dir(ledger), "c.yaml"), `
stores:
  ledger: { embedded: { path: `+ledger+` } }
  gone: { embedded: { path: ./gone } }
  mem: { memory: {} }
pipelines:
  orders: { source: { file: { paths: [in] } }, key: { id: .id, scope: default }, store: ledger, sink: { file: { path: out } }, parked: { path: ./parked } }
  other: { source: { file: { paths: [in] } }, key: { id: .id }, store: gone, sink: { file: { path: out2 } }, parked: { path: ./never } }
  third: { source: { file: { paths: [in] } }, key: { id: .id }, store: mem, sink: { file: { path: out3 } }, parked: { path: ./never } }
`)
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(filepath.Dir(ledger), "parked"))
	if err != nil {
		t.Fatal(err)
	}
	parked := []pipeline.Parked{
		{ID: "one", Pipeline: "orders", Key: semel.Key{Scope: keyrecord.DefaultScope, ID: "order-2"}, Reason: "unknown", Error: "no answer", Attempts: 3, At: time.Now()},
		{ID: "two", Pipeline: "orders", Key: semel.Key{Scope: keyrecord.DefaultScope, ID: "order-9"}, Reason: "attempts", Attempts: 8, At: time.Now()},
	}
	if err := letters.Park(t.Context(), parked); err != nil {
		t.Fatal(err)
	}
	ask := func(words ...string) outcome {
		return run(t, "", append([]string{"explain", "--config", file}, words...)...)
	}

	got := ask("--key", "order-1")
	got.check(t, term.ExitDone)
	for _, want := range []string{
		"pipeline     orders\nstore        ledger\nkey          order-1\nscope        default\nstate        done\n", "result ", "fingerprint ",
		"next time    it is a duplicate: it is acknowledged without effect, and gets the stored result\n",
		"\n\npipeline     other\nstore        gone\nnot seen     store gone: " + filepath.Join(filepath.Dir(ledger), "gone") + ": there is no store in this directory\n",
		"\n\npipeline     third\nstore        mem\nnot seen     mem lives in the memory of the process that uses it",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in:\n%s", want, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "\nparked ") {
		t.Errorf("no message of this key was parked:\n%s", got.stdout)
	}
	got = ask("--key", "order-2", "--json")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	var answer pipelinecmd.KeyAnswer
	if err := json.Unmarshal([]byte(lines[0]), &answer); err != nil || len(lines) != 3 || got.status != term.ExitDone {
		t.Fatal(err, got)
	}
	if answer.Record.State != "unknown" || !strings.Contains(answer.Next, "semel keys resolve") || len(answer.Parked) != 1 || answer.Parked[0].Reason != "unknown" || answer.Parked[0].Attempts != 3 {
		t.Errorf("%+v", answer)
	}
	if got = ask("--key", "order-9", "--store-name", "ledger"); got.status != term.ExitDone || !strings.Contains(got.stdout, "it is processed: the store has no record of the key") || strings.Contains(got.stdout, "pipeline") {
		t.Errorf("a store alone: %+v", got)
	}
	if got = ask("--key", "order-9"); !strings.Contains(got.stdout, "parked       two, since ") || !strings.Contains(got.stdout, "after 8 attempts: attempts\n") {
		t.Errorf("%+v", got)
	}
	if got = ask("--key", "42", "--store-name", "ledger"); strings.Count(got.stdout, "state        done\n") != 2 {
		t.Errorf("a string and a number: %+v", got)
	}
	if got = ask("--key", "42", "--json-id", "--store-name", "ledger"); strings.Count(got.stdout, "state        done\n") != 1 {
		t.Errorf("the number alone: %+v", got)
	}
	if got = ask("--key", "order-1", "--scope", "elsewhere", "--store-name", "ledger"); !strings.Contains(got.stdout, "state        absent\n") {
		t.Errorf("another scope: %+v", got)
	}
	run(t, "", "explain", "--key", "a").check(t, term.ExitUsage, "--config FILE is missing: name the configuration; for a store of semel dedup write semel keys show ID --store DIR\n")
	run(t, "", "explain", "--config", file).check(t, term.ExitUsage, "--key ID is missing: name the key")
	ask("--key", "a", "file.yaml").check(t, term.ExitUsage, `unexpected argument "file.yaml": with --key this verb takes FILE and flags only`)
	ask("--key", "a", "--store-name", "legder").check(t, term.ExitUsage, "has no such store: did you mean ledger?")

	held, err := kind.All().Read(file, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		record semel.Record
		want   string
	}{
		{semel.Record{State: semel.Claimed, Holder: "worker-7", LeaseEnd: now.Add(time.Minute)}, "it waits: worker-7 holds the key until 2026-01-02 03:05:05 UTC and may extend that; after 5s it goes back"},
		{semel.Record{State: semel.Claimed, Attempt: 2, LeaseEnd: now}, "it is processed, as attempt 3: the lease of the last one ended"},
		{semel.Record{State: semel.Done, Result: semel.Result{Kind: semel.Failed}, Expires: now}, "a duplicate of a message that failed permanently: it is acknowledged without effect, and gets the stored error, until 2026-01-02 03:04:05 UTC"},
		{semel.Record{}, "it was forgotten after its window of 7d"},
	} {
		if got := keyrecord.NextDelivery(&c.record, held.Pipelines[0], now); !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestSchemaIsJSON(t *testing.T) {
	t.Parallel()
	got := run(t, "", "schema")
	got.check(t, term.ExitDone)
	var schema map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &schema); err != nil || schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Error(err, schema["$schema"])
	}
}

func TestExplainAKeyThatLivesInKafka(t *testing.T) {
	t.Parallel()
	addr := servicestest.FreeAddr(t) // free again once the cluster is closed
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "clean"),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) { return net.Listen(network, addr) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.ReplaceAll(kafkaExample, "127.0.0.1:9092", addr))
	ask := func(more ...string) outcome {
		return run(t, "", append([]string{"explain", "--config", file, "--key", "order-7"}, more...)...)
	}
	if got := ask(); !strings.Contains(got.stdout, "orders has never run: topic orders-once-keys: there is no changelog yet") {
		t.Errorf("%+v", got)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, key := range []string{"order-6", "order-7", "order-7"} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Key: []byte(key)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	stop := background(t, "run", file, "--admin", "off")
	var got outcome
	for deadline := time.Now().Add(5 * time.Minute); !strings.Contains(got.stdout, "state        done") && time.Now().Before(deadline); {
		got = ask()
	}
	for _, want := range []string{"pipeline     orders\n", "key          order-7\n", "origin       orders 0/1\n", "next time    it is a duplicate: it is acknowledged without effect, until "} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("lacks %q:\n%+v", want, got)
		}
	}
	if got = ask("--json"); !strings.Contains(got.stdout, `"origin":{"topic":"orders","partition":0,"offset":1}`) {
		t.Errorf("%+v", got)
	}
	stop().check(t, term.ExitDone, `"ended"`)
	cluster.Close()
	down := ask()
	down.check(t, term.ExitFailed, "read the changelog of orders: ", "read the parked messages of pipeline orders: ")
}
