package parkedcmd_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/cli/parkedcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// kafkaTopics is a Kafka cluster with two topics of a pipeline. clean accepts only small records.
type kafkaTopics struct {
	*testing.T
	addr   string
	orders string // the pipeline and its input
	clean  string
	client *kgo.Client
	admin  *kadm.Client
}

func newKafkaTopics(t *testing.T, addr string) *kafkaTopics {
	t.Helper()
	name := servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(name), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	k := &kafkaTopics{t, addr, name, name + "-clean", client, kadm.NewClient(client)}
	if _, err := k.admin.CreateTopic(t.Context(), 2, 1, nil, k.orders); err != nil {
		t.Fatal(err)
	}
	if _, err := k.admin.CreateTopic(t.Context(), 2, 1, map[string]*string{"max.message.bytes": kadm.StringPtr("2000")}, k.clean); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kafkaTopics) send(keys []string, size int) {
	k.Helper()
	for _, key := range keys {
		r := &kgo.Record{Value: []byte(strings.Repeat("x", size))}
		if key != "" {
			r.Key = []byte(key)
		}
		if err := k.client.ProduceSync(k.Context(), r).FirstErr(); err != nil {
			k.Fatal(err)
		}
	}
}

// count returns how many records with a key a topic has.
func (k *kafkaTopics) count(topic, key string) (n int) {
	k.Helper()
	for late := time.Now().Add(5 * time.Minute); ; {
		n = 0
		err := kafka.ReadAll(k.Context(), []kgo.Opt{kgo.SeedBrokers(k.addr)}, []string{topic}, func(r *kgo.Record) bool {
			if string(r.Key) == key {
				n++
			}
			return true
		})
		switch {
		case err == nil:
			return n
		case !errors.Is(err, kerr.LeaderNotAvailable) || time.Now().After(late): // a broker that stood still leads no partition for a moment
			k.Fatal(err)
		}
	}
}

// becomes waits until a condition holds.
func (k *kafkaTopics) becomes(what string, is func() bool) {
	k.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !is(); {
		if time.Now().After(deadline) {
			k.Fatalf("it did not become so: %s", what)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func TestParkedMessagesInATopic(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"fake": func(t *testing.T) string {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			return cluster.ListenAddrs()[0]
		},
		"real": func(t *testing.T) string { return programtest.Servers.Kafka(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testParkedInATopic(newKafkaTopics(t, start(t)))
		})
	}
}

func testParkedInATopic(k *kafkaTopics) {
	t, name := k.T, k.orders
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.NewReplacer("127.0.0.1:9092", k.addr, "orders", name, "clean", k.clean).Replace(programtest.KafkaExample))
	parked := func(words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "", append([]string{"parked", words[0], "--config", file}, words[1:]...)...)
	}
	if got := parked("ls"); got.Status != term.ExitDone || strings.Count(got.Stdout, "\n") != 1 || !strings.Contains(got.Stderr, "0 messages parked") {
		t.Errorf("before the first run: %+v", got)
	}
	k.send([]string{"small", "small", ""}, 10)
	k.send([]string{"huge", "huge"}, 5000) // too large for clean
	stop := programtest.Background(t, "run", file, "--admin", "off")
	var list []parkedcmd.Line
	var last programtest.Outcome
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("listed last: %+v", last)
		}
	})
	listed := func() int {
		list, last = nil, parked("ls", "--json", "--quiet")
		if last.Status != term.ExitDone {
			return -1 // brokers list a topic before they can read it
		}
		for line := range strings.Lines(last.Stdout) {
			var m parkedcmd.Line
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err, line)
			}
			list = append(list, m)
		}
		return len(list)
	}
	k.becomes("three messages are parked", func() bool { return listed() == 3 })
	stop().Check(t, term.ExitDone, `"ended"`)
	var huge []string
	none, partition := "", int32(0)
	for _, m := range list {
		switch string(m.Key) {
		case `"huge"`:
			huge, partition = append(huge, m.ID), m.Partition
			if m.Reason != "permanent" || m.Attempts != 1 || m.Source != name || *m.Scope != name || m.Bytes != 5000 || m.At == "" {
				t.Errorf("%+v", m)
			}
		default:
			none = m.ID
		}
	}
	if len(huge) != 2 || !strings.HasPrefix(none, name+"-parked/") {
		t.Fatalf("%+v", list)
	}
	if got := parked("ls", "--reason", "key-missing"); got.Status != term.ExitDone || strings.Count(got.Stdout, "\n") != 2 || !strings.Contains(got.Stdout, none+"  ") {
		t.Errorf("%+v", got)
	}
	if got := parked("show", huge[0]); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "key          huge\nscope        "+name+"\nreason       permanent\n") || !strings.Contains(got.Stdout, "body         4.9 KiB\nxxxx") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "why", "huge", "--config", file); got.Status != term.ExitDone || strings.Count(got.Stdout, "parked       "+name+"-parked/") != 2 {
		t.Errorf("%+v", got)
	}
	parked("done", huge[0], "--reason", "x").Check(t, term.ExitFailed, "the keys of "+name+" are in Kafka, where only an output makes a key done: semel parked skip removes the messages")
	parked("retry", name+"-parked/0/99").Check(t, term.ExitFailed, name+"-parked/0/99 is not a parked message of "+name)
	if got := parked("retry", "--all", "--dry-run"); got.Status != term.ExitDone || strings.Count(got.Stdout, "huge: it is processed: ") != 2 || !strings.Contains(got.Stdout, "(no key): its key is found again") {
		t.Errorf("%+v", got)
	}

	// The record that was too large fits now.
	if _, err := k.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: kadm.StringPtr("100000")}}, k.clean); err != nil {
		t.Fatal(err)
	}
	for partition := range int32(2) {
		k.becomes("the broker takes large records", func() bool { // it answers before its partitions know
			err := programtest.ProduceTo(t, k.addr, &kgo.Record{Topic: k.clean, Partition: partition, Key: []byte("probe"), Value: make([]byte, 5000)})
			if err != nil && !errors.Is(err, kerr.MessageTooLarge) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	if got := parked("retry", huge[0]); got.Status != term.ExitDone || !strings.HasPrefix(got.Stdout, huge[0]+"  "+name+"  huge: redriven: written to "+name+"/") {
		t.Errorf("%+v", got)
	}
	parked("retry", huge[0]).Check(t, term.ExitFailed, huge[0]+" is not a parked message of "+name)
	stop = programtest.Background(t, "run", file, "--admin", "off")
	k.becomes("it is delivered", func() bool { return k.count(k.clean, "huge") == 1 })
	if got := parked("retry", "--key", "huge", "--dry-run"); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "huge: it is a duplicate: ") {
		t.Errorf("%+v", got)
	}
	if got := parked("retry", "--key", "huge", "--json"); got.Status != term.ExitDone || !strings.Contains(got.Stdout, `"id":"`+huge[1]+`","outcome":"redriven"`) {
		t.Errorf("%+v", got)
	}
	if got := parked("retry", "--all"); got.Status != term.ExitDone || !strings.Contains(got.Stdout, none+"  "+name+"  (no key): redriven: ") {
		t.Errorf("%+v", got)
	}
	// Without a key it is parked again, under another id.
	k.becomes("it is parked again", func() bool { return listed() == 1 && list[0].ID != none && list[0].Redrives == 1 })
	if err := programtest.ProduceTo(t, k.addr, &kgo.Record{Topic: name, Partition: partition, Key: []byte("last")}); err != nil {
		t.Fatal(err)
	}
	k.becomes("all was read", func() bool { return k.count(k.clean, "last") == 1 })
	stop().Check(t, term.ExitDone, `"ended"`)
	for _, key := range []string{"small", "huge"} {
		if n := k.count(k.clean, key); n != 1 {
			t.Errorf("%s was delivered %d times", key, n)
		}
	}
	if got := parked("skip", "--parked-for", "key-missing", "--reason", "no order"); got.Status != term.ExitDone || got.Stdout != list[0].ID+"  "+name+"  (no key): skipped\n" {
		t.Errorf("%+v", got)
	}
	if n := listed(); n != 0 {
		t.Errorf("%d are left: %+v", n, list)
	}
	parked("retry", "--all").Check(t, term.ExitDone, "no message was chosen")
	if n := k.count(name+"-parked-settled", huge[1]); n != 1 {
		t.Errorf("the audit log has %s %d times", huge[1], n)
	}
}

func TestParkedTopicOfAnUnreachableBrokerIsAnError(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.ReplaceAll(programtest.KafkaExample, "127.0.0.1:9092", "127.0.0.1:1"))
	programtest.Run(t, "", "parked", "ls", "--config", file, "--quiet").Check(t, term.ExitFailed, "open the parked messages of orders: ")
}

// TestSilentBrokerDoesNotHideOtherParkedMessages has two pipelines. The Kafka cluster of
// the first does not answer; the second has messages in a directory.
func TestSilentBrokerDoesNotHideOtherParkedMessages(t *testing.T) {
	t.Parallel()
	w := newTarget(t)
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	park(t, file, asideFor("one", "m2", time.Hour), asideFor("two", "m3", time.Hour))
	hooks := programtest.ReadFile(t, file)
	programtest.WriteFile(t, file, strings.ReplaceAll(strings.Replace(hooks, "pipelines:\n", programtest.KafkaExample, 1), "127.0.0.1:9092", "127.0.0.1:1"))
	parked := func(words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "", append(words, "--config", file)...)
	}
	const trouble = "open the parked messages of orders: "
	got := parked("parked", "ls")
	if got.Check(t, term.ExitFailed, trouble); strings.Count(got.Stdout, "\n") != 3 {
		t.Errorf("%+v", got)
	}
	got = parked("parked", "retry", "one")
	if got.Check(t, term.ExitFailed, trouble); got.Stdout != "one  hooks  m2: redriven\n" || w.seen() != "m21" {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	got = parked("parked", "skip", "--all", "--reason", "a test")
	if got.Check(t, term.ExitFailed, trouble); got.Stdout != "two  hooks  m3: skipped\n" {
		t.Errorf("%+v", got)
	}
	parked("parked", "ls", "--pipeline", "hooks").Check(t, term.ExitDone, "0 messages parked")
}

// TestMessagesParkedInATopicAreRedrivenUnderTheirKeys settles messages that carry their keys.
func TestMessagesParkedInATopicAreRedrivenUnderTheirKeys(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "events", "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	addr := cluster.ListenAddrs()[0]
	w := newTarget(t, "m1", "m3")
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
admin: { listen: "off" }
pipelines:
  hooks:
    source: { kafka: { brokers: [%q], topics: [events], group: hooks-once } }
    key: { id: .id }
    store: keys
    sink: { webhook: { url: %q, allow_private: true } }
    on_failure: { attempts: 1 }
    parked: { topic: dead }
`, addr, w.URL))
	for i, id := range []string{"m1", "m2", "m3"} {
		if err := programtest.ProduceTo(t, addr, &kgo.Record{Topic: "events", Partition: int32(i % 2), Value: []byte(`{"id":"` + id + `"}`)}); err != nil {
			t.Fatal(err)
		}
	}
	k := &kafkaTopics{T: t, addr: addr}
	stop := programtest.Background(t, "run", file)
	k.becomes("two messages are parked", func() bool { return len(asides(t, file)) == 2 && w.seen() == "m2" })
	stop().Check(t, term.ExitDone, `"ended"`)
	list := asides(t, file)
	if m := list["m1"]; m.Source != "events" || m.Reason != "permanent" || m.Scope == nil || *m.Scope != "hooks" {
		t.Errorf("%+v", m)
	}
	if got := programtest.Run(t, "", "parked", "done", "--key", "m3", "--reason", "the bank has it", "--config", file); got.Status != term.ExitDone || got.Stdout != list["m3"].ID+"  hooks  m3: done\n" {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "", "keys", "show", "m3", "--scope", "hooks", "--store", filepath.Join(dir, "keys")).Check(t, term.ExitDone)
	w.accept()
	if got := programtest.Run(t, "", "parked", "retry", "--key", "m1", "--dry-run", "--config", file); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "m1: it is processed: ") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "parked", "retry", "--all", "--config", file); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "m1: redriven: written to events/0 at 2, for the running pipeline\n") {
		t.Errorf("%+v", got)
	}
	stop = programtest.Background(t, "run", file)
	k.becomes("it is delivered", func() bool { return strings.HasPrefix(w.seen(), "m2 m1") })
	stop().Check(t, term.ExitDone, `"ended"`)
	// A record without an origin cannot be written back.
	if err := programtest.ProduceTo(t, addr, &kgo.Record{Topic: "dead", Value: []byte(`{"id":"m5"}`)}); err != nil {
		t.Fatal(err)
	}
	list = asides(t, file)
	if len(list) != 1 {
		t.Fatalf("left: %+v", list)
	}
	got := programtest.Run(t, "", "parked", "retry", "--all", "--config", file)
	if got.Check(t, term.ExitFailed, "hooks: not settled: 1 of 1 message"); !strings.HasPrefix(got.Stdout, list["m5"].ID+"  hooks  m5: not redriven: its headers do not say where it came from: ") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "parked", "retry", "--all", "--dry-run", "--config", file); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "m5: not redriven: its headers do not say") {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "", "parked", "skip", list["m5"].ID, "--reason", "not ours", "--config", file).Check(t, term.ExitDone)
	if list := asides(t, file); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}
