package wiring

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

func TestEachProcessOfAMachineIsAMemberOfItsOwn(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	spec := &config.KafkaSource{Group: "g", KafkaClient: config.KafkaClient{Brokers: []string{"a:9092"}}}
	take := func(spec *config.KafkaSource, want string) (release func()) {
		t.Helper()
		name, lock, err := member("orders", spec, dir)
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
	take(&config.KafkaSource{Group: "other", KafkaClient: spec.KafkaClient}, "orders."+host+".1")
	first()
	take(spec, "orders."+host+".1") // it started again

	named := &config.KafkaSource{Group: "g", Instance: "left", KafkaClient: spec.KafkaClient}
	release := take(named, "left")
	_, _, err = member("orders", named, dir)
	if want := fmt.Sprintf("instance left of group g is in use by process %d: give each process an instance of its own", os.Getpid()); err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("%v, want %s", err, want)
	}
	release()
	take(named, "left")
	for _, none := range []string{"", filepath.Join(dir, "missing")} {
		if name, lock, err := member("orders", named, none); name != "left" || err != nil || lock.Close() != nil {
			t.Errorf("without a place for locks: %q, %v", name, err)
		}
	}
}

func TestProcessesOfOneTransactionAreMembersOfTheirOwn(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	file, err := config.Parse(filepath.Join(t.TempDir(), "semel.yaml"), []byte(`pipelines:
  orders:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g } }
    key: { id: .id, scope: orders }
    window: 1d
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out } }
`), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b := &building{file: file, spec: file.Pipelines[0]}
	next := func(want string) {
		t.Helper()
		name, lock, err := member("orders", b.spec.Source.(*config.KafkaSource), membersDir())
		if err != nil || name != want {
			t.Errorf("the next is %q, %v; want %q", name, err, want)
		}
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	}
	first, err := b.transactor()
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

// TestGroupsDoNotShareTransactionalIDs has names that are the same with dashes
// between them.
func TestGroupsDoNotShareTransactionalIDs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ids := map[string]string{}
	for _, of := range [][2]string{{"orders", "eu-copy"}, {"orders-eu", "copy"}} {
		spec := &config.KafkaSource{Group: of[0], KafkaClient: config.KafkaClient{Brokers: []string{"a:9092"}}}
		name, lock, err := member(of[1], spec, dir)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		id := transactionalID(spec, &config.Transaction{}, name)
		if other, there := ids[id]; there {
			t.Errorf("groups %s and %s both have %s", other, of[0], id)
		}
		ids[id] = of[0]
	}
}
