package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

func TestEachProcessOnAMachineGetsItsOwnMemberName(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	spec := &Source{Group: "g", Client: Client{Brokers: []string{"a:9092"}}}
	take := func(spec *Source, want string) (release func()) {
		t.Helper()
		name, lock, err := spec.member("orders", dir)
		if err != nil || name != want {
			t.Fatalf("%q, %v; want %q", name, err, want)
		}
		return func() {
			if err := lock.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	first := take(spec, "orders."+host+".1")
	take(spec, "orders."+host+".2")
	take(&Source{Group: "other", Client: spec.Client}, "orders."+host+".1")
	first()
	take(spec, "orders."+host+".1") // it started again

	named := &Source{Group: "g", Instance: "left", Client: spec.Client}
	release := take(named, "left")
	_, _, err = named.member("orders", dir)
	if want := fmt.Sprintf("instance left of group g is in use by process %d: give each process an instance of its own", os.Getpid()); err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("%v, want %s", err, want)
	}
	release()
	take(named, "left")
	for _, none := range []string{"", filepath.Join(dir, "missing")} {
		if name, lock, err := named.member("orders", none); name != "left" || err != nil || lock.Close() != nil {
			t.Errorf("without a place for locks: %q, %v", name, err)
		}
	}
}

func TestProcessesOfATransactionalPipelineGetTheirOwnMemberNames(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	file, err := (&config.Kinds{Sources: []func() config.Source{NewSource}, Sinks: []func() config.Sink{NewSink}}).Parse(filepath.Join(t.TempDir(), "semel.yaml"), []byte(`pipelines:
  orders:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g } }
    key: { id: .id, scope: orders }
    window: 1d
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out } }
`), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	spec := file.Pipelines[0].Source.(*Source)
	next := func(want string) {
		t.Helper()
		name, lock, err := spec.member("orders", membersDir())
		if err != nil || name != want {
			t.Errorf("the next is %q, %v; want %q", name, err, want)
		}
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	}
	first, err := spec.OpenTransaction(&config.Env{File: file, Pipeline: file.Pipelines[0]})
	if err != nil {
		t.Fatal(err)
	}
	next("orders." + host + ".2")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Run(ended); err != nil {
		t.Error(err)
	}
	next("orders." + host + ".1")
}

// TestGroupsDoNotShareTransactionalIDs has names that are equal when joined with
// dashes.
func TestGroupsDoNotShareTransactionalIDs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ids := map[string]string{}
	for _, of := range [][2]string{{"orders", "eu-copy"}, {"orders-eu", "copy"}} {
		spec := &Source{Group: of[0], Client: Client{Brokers: []string{"a:9092"}}}
		name, lock, err := spec.member(of[1], dir)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		id := spec.transactionalID(name)
		if other, there := ids[id]; there {
			t.Errorf("groups %s and %s both have %s", other, of[0], id)
		}
		ids[id] = of[0]
	}
}

// The transactor accepts every transaction setting that a configuration may have.
func TestTransactionSettingsThatParseAreAccepted(t *testing.T) {
	t.Parallel()
	for _, transaction := range []string{
		"{}", "{ interval: 4999ms }", "{ grace: 0s }", "{ time: event, grace: 1h }", "{ changelog: c, standby: true }, parallel: 64",
	} {
		text := strings.Replace(`
pipelines:
  p: { source: { kafka: { brokers: ["h:1"], topics: [in], group: g } }, key: { id: .id }, sink: { kafka: { brokers: ["h:1"], topic: out } }, transaction: TRANSACTION }
`, "TRANSACTION", transaction, 1)
		kinds := &config.Kinds{Sources: []func() config.Source{NewSource}, Sinks: []func() config.Sink{NewSink}}
		file, err := kinds.Parse(filepath.Join(t.TempDir(), "semel.yaml"), []byte(text), func(string) string { return "" })
		if err != nil {
			t.Fatalf("%s: %v", transaction, err)
		}
		env := &config.Env{File: file, Pipeline: file.Pipelines[0]}
		if _, err := env.Pipeline.Source.(*Source).newTransactor(env, "instance"); err != nil {
			t.Errorf("%s: %v", transaction, err)
		}
	}
}
