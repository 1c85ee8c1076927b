package trialcmd_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/cli/trialcmd"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func dryLines(t *testing.T, got programtest.Outcome) (list []trialcmd.DryLine) {
	t.Helper()
	for line := range strings.Lines(got.Stdout) {
		var d trialcmd.DryLine
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err, line)
		}
		list = append(list, d)
	}
	return list
}

func TestDryRunSaysWhatWouldBeDroppedAndWritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  p:
    source: { file: { paths: ["*.jsonl"] } }
    key: { id: .id }
    on_mismatch: park
    store: keys
    sink: { file: { path: out } }
`)
	in := filepath.Join(dir, "in.jsonl")
	programtest.WriteFile(t, in, `{"id":"a","n":1}`+"\n"+`{"id":"b","n":1}`+"\n"+`{"id":"a","n":1}`+"\n"+`{"id":"b","n":2}`+"\n"+`{}`+"\n"+`{"id":"c"}`+"\n")
	got := programtest.Run(t, "", "dry-run", file, "--json")
	got.Check(t, term.ExitFound)
	want := map[string]int64{"fresh": 3, "duplicate": 1, "mismatch": 1, "missing": 1, "late": 0, "in_flight": 0, "unknown": 0}
	d := dryLines(t, got)[0]
	for kind, n := range want {
		if d.Count[kind] != n {
			t.Errorf("%s: %d, want %d", kind, d.Count[kind], n)
		}
	}
	if s := d.Samples["duplicate"]; d.Read != 6 || len(s) != 1 || s[0].Key != "a" || s[0].Offset != 34 || s[0].First == nil || s[0].First.Offset != 0 || d.Unseen == "" {
		t.Errorf("%+v", d)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("something was written: %v %v", entries, err)
	}

	programtest.Run(t, "", "run", file, "--quiet", "--admin", "off").Check(t, term.ExitDone)
	before := snapshot(t, dir)
	got = programtest.Run(t, "", "dry-run", file)
	got.Check(t, term.ExitFound)
	for _, want := range []string{"p: read 6, until the end of the source\n", "  duplicate             4  dropped\n", "a: first seen 20", "  mismatch              1  parked\n", "  missing               1  parked\n", "in.jsonl line 5 (byte 68): .id is missing\n"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing in\n%s", want, got.Stdout)
		}
	}
	ignoring := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.NewReplacer("on_mismatch: park", "", "*.jsonl", in).Replace(programtest.ReadFile(t, file)))
	programtest.Run(t, "", "dry-run", ignoring).Check(t, term.ExitFound, "")
	if got = programtest.Run(t, "", "dry-run", ignoring); !strings.Contains(got.Stdout, "  duplicate             2  dropped\n    1 with other content than the first message of their key: on_mismatch: park keeps such messages\n") || !strings.Contains(got.Stdout, "in.jsonl line 3 (byte 34)  a: as "+in+" line 1 (byte 0)\n") {
		t.Errorf("with on_mismatch: ignore: %s", got.Stdout)
	}
	if got = programtest.Run(t, "", "dry-run", file, "--limit", "2", "--samples", "1", "--json"); dryLines(t, got)[0].Ended != "--limit" || dryLines(t, got)[0].Count["duplicate"] != 2 || len(dryLines(t, got)[0].Samples["duplicate"]) != 1 {
		t.Errorf("%+v", got)
	}
	if after := snapshot(t, dir); after != before {
		t.Errorf("something was written: before\n%s\nafter\n%s", before, after)
	}
	programtest.WriteFile(t, in, `{"id":"new"}`+"\n")
	if got = programtest.Run(t, "", "dry-run", file, "p"); got.Status != term.ExitDone {
		t.Errorf("all is new: %+v", got)
	}
	programtest.Run(t, "", "dry-run", file, "--limit", "0", "q").Check(t, term.ExitUsage, "--limit 0: read at least one message", "has no such pipeline: ")
	programtest.Run(t, "", "dry-run", file, "--for", "0s").Check(t, term.ExitUsage, "--for 0s: read for at least a moment, such as 10s")
	programtest.Run(t, "", "dry-run").Check(t, term.ExitUsage, "FILE is missing")
	hooks := programtest.WriteFile(t, filepath.Join(dir, "hooks.yaml"), strings.Replace(programtest.ReadFile(t, file), `file: { paths: ["*.jsonl"] }`, `http: { listen: "127.0.0.1:80" }`, 1))
	programtest.Run(t, "", "dry-run", hooks).Check(t, term.ExitFailed, "p: a source of the kind http receives messages and cannot be read in advance")
}

// snapshot returns every file below a directory with its content. For a store it
// returns the keys, because its files show when it was opened.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if entry.Name() == "keys" {
			text.WriteString(programtest.Run(t, "", "keys", "export", "--store", path, "-q").Stdout)
			return filepath.SkipDir
		}
		if err == nil && !entry.IsDir() {
			data, err := os.ReadFile(path)
			text.WriteString(path + ": " + string(data) + "\n")
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func TestDryRunDoesNotJoinTheConsumerGroup(t *testing.T) {
	t.Parallel()
	brokers := servicestest.StartKafka(t, nil).Addr()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopics(t.Context(), 2, 1, nil, "events"); err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"a", "b", "a", "a"} {
		record := &kgo.Record{Topic: "events", Partition: int32(i / 3), Value: []byte(`{"event_id":"` + id + `"}`)}
		if err := programtest.ProduceTo(t, brokers, record); err != nil {
			t.Fatal(err)
		}
	}
	s := programtest.OpenScenario(t, "kafka-to-kafka", map[string]string{"KAFKA_BROKERS": brokers})
	got := programtest.RunEnv(t, s.Getenv, "", "dry-run", s.File, "--json", "--for", "5m")
	// In a transaction, each partition has its own keys.
	if d := dryLines(t, got); got.Status != term.ExitFound || len(d) != 1 || d[0].Count["fresh"] != 3 || d[0].Count["duplicate"] != 1 || !strings.Contains(d[0].Unseen, "are in Kafka") {
		t.Errorf("%+v", got)
	}
	groups, err := admin.ListGroups(t.Context())
	if err != nil || len(groups) != 0 {
		t.Errorf("groups: %v %v", groups, err)
	}
}
