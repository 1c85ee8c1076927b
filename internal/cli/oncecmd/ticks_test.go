package oncecmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// hosts is how many processes compete for each tick.
const hosts = 5

// ticks are the runs of a command at many times on several hosts. The command writes its key,
// its call and itself to the journal. A kill follows in every fifth tick.
type ticks struct {
	t       *testing.T
	dir     string
	store   []string
	journal string
}

// TestNoTickRunsTwice has processes that compete for each tick on one store. Some of those that
// have got it are killed while their command runs. The journal shows that each tick ran once,
// also those whose outcome is unknown.
func TestNoTickRunsTwice(t *testing.T) {
	t.Parallel()
	stores := map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return "{ postgres: { dsn: \"" + programtest.Servers.Database(t) + "\" } }" },
		"redis": func(t *testing.T) string {
			return "{ redis: { url: \"" + programtest.Servers.Redis(t) + "\", prefix: \"" + servicestest.Prefix() + "\" } }"
		},
		"embedded": func(*testing.T) string { return "{ embedded: { path: keys } }" },
	}
	for name, store := range sampletest.Sampled(stores, 2) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 1000
			switch {
			case testing.Short():
				n = 10
			case name == "embedded": // its calls wait for each other
				n = 200
			}
			dir := t.TempDir()
			programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), "stores: { s: "+store(t)+" }\n")
			if name == "postgres" {
				programtest.Run(t, "", "migrate", "up", "--config", filepath.Join(dir, "c.yaml"), "--store-name", "s").Check(t, 0, "")
			}
			k := &ticks{t: t, dir: dir, store: []string{"--config", "c.yaml", "--lease", "20s"}, journal: filepath.Join(dir, "journal")}
			var killed []string
			for i := range n {
				if name := fmt.Sprintf("tick-%d", i); i%5 == 4 {
					killed = append(killed, name)
					k.killed(name)
				} else {
					k.quiet(name)
				}
			}
			k.unknown(killed)
			k.ranOnce(n)
			t.Logf("%d ticks on %d hosts, %d killed", n, hosts, len(killed))
		})
	}
}

// compete starts a command on all hosts.
func (k *ticks) compete(key, command string) (calls []*running) {
	for range hosts {
		calls = append(calls, start(k.t, k.dir, append(k.store, "--key", key, "--", "sh", "-c", `echo "$SEMEL_KEY $PPID $$" >> journal`+command)...))
	}
	return calls
}

// quiet is a tick without a kill.
func (k *ticks) quiet(key string) {
	k.t.Helper()
	ran := 0
	for _, call := range k.compete(key, "") {
		switch got := call.end(); {
		case strings.Contains(got.Stderr, ": ran in ") && got.Status == 0:
			ran++
		case strings.Contains(got.Stderr, ": duplicate, exit status 0") && got.Status == 0, got.Status == 75:
		default:
			k.t.Fatalf("%+v", got)
		}
	}
	if ran != 1 {
		k.t.Fatalf("%d calls say that they ran %s", ran, key)
	}
}

// killed kills the call whose command runs. The others find it in flight.
func (k *ticks) killed(key string) {
	k.t.Helper()
	calls := k.compete(key, "; sleep 1000")
	holder, command := 0, 0
	until(k.t, "run of "+key, func() bool {
		for _, line := range k.lines() {
			if fields := strings.Fields(line); len(fields) == 3 && fields[0] == key {
				holder, _ = strconv.Atoi(fields[1])
				command, _ = strconv.Atoi(fields[2])
			}
		}
		return command != 0
	})
	for _, call := range calls {
		if call.Process.Pid == holder {
			if err := call.Process.Kill(); err != nil {
				k.t.Fatal(err)
			}
		}
	}
	for _, call := range calls {
		if got := call.end(); got.Status != 75 && (call.Process.Pid != holder || got.Status != -1) {
			k.t.Fatalf("%s with a holder that was killed: %+v", key, got)
		}
	}
	until(k.t, "end of the command of "+key, func() bool { return gone(command) })
}

// unknown checks that killed ticks are unknown when their leases have ended.
func (k *ticks) unknown(keys []string) {
	var all sync.WaitGroup
	defer all.Wait()
	slots := make(chan struct{}, hosts)
	for _, key := range keys {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			until(k.t, "unknown outcome of "+key, func() bool {
				got := once(k.t, k.dir, append(k.store, "--key", key, "--", "sh", "-c", `echo "$SEMEL_KEY $PPID $$" >> journal`)...)
				if got.Status != 75 && got.Status != 76 {
					k.t.Errorf("%s after its holder was killed: %+v", key, got)
				}
				return got.Status != 75
			})
		})
	}
}

// ranOnce compares the journal with the ticks.
func (k *ticks) ranOnce(n int) {
	k.t.Helper()
	ran := map[string]int{}
	for _, line := range k.lines() {
		key, _, _ := strings.Cut(line, " ")
		ran[key]++
	}
	for key, times := range ran {
		if times != 1 {
			k.t.Errorf("%s ran %d times", key, times)
		}
	}
	if len(ran) != n {
		k.t.Errorf("%d of %d ticks ran", len(ran), n)
	}
}

func (k *ticks) lines() []string {
	text, _ := os.ReadFile(k.journal)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}
