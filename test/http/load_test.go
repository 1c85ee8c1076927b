package http

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// memory returns the pages of the proxy that are in memory, in bytes. Only Linux tells.
// Elsewhere it is 0, and the tests check the rest. So it is with the race detector, whose own
// memory is several times that of the proxy.
func (p *proxy) memory(t *testing.T) int64 {
	t.Helper()
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Log("NOT CHECKED: the race detector takes most of the memory; make memory checks it without")
		return 0
	}
	if runtime.GOOS != "linux" {
		t.Log("NOT CHECKED: memory is read from /proc, which only Linux has")
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// others sends requests with keys of their own, one after the other, and returns the time
// that the slowest one percent took.
func others(t *testing.T, p *proxy, name string, n int) time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range n {
		start := time.Now()
		got, err := post(t.Context(), p.url, fmt.Sprintf("%s-%d", name, i), "")
		took = append(took, time.Since(start))
		if err != nil || got.body != "run 1" {
			t.Errorf("a request with a key of its own got %+v, %v", got, err)
			break
		}
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// tolerable is how long other requests may take under load. It is far above what they
// take, because tests share their machine, and below the time for which a request, a body
// or a header is waited for.
const tolerable = 8 * time.Second

// steady is a lease that ends while no request of these tests is under way, however slow
// the machine is.
var steady = []string{"--lease", "5m"}

// Many clients wait for the answer of one request. Other requests pass, and each client gets this
// answer, or a problem that permits a repetition.
func TestManyClientsWaitForTheResponseOfOneRequest(t *testing.T) {
	t.Parallel()
	many := 10_000
	if testing.Short() {
		many = 2000
	}
	s := newService(t)
	p := newProxy(t, s.url, append(append(stores[0].flags(t), steady...), "--wait", "4m", "--upstream-timeout", "5m")...)
	first := hold(t.Context(), t, s, p.url, "order")
	before := p.memory(t)
	replies := make(chan asked, many)
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			got, err := post(t.Context(), p.url, "order", "gate")
			replies <- asked{got, err}
		})
	}
	slow := others(t, p, "other", 200)
	if grown := p.memory(t) - before; grown > int64(many)*64<<10+64<<20 {
		t.Errorf("%d waiting requests take %d MiB", many, grown>>20)
	}
	s.Open("order")
	<-first
	all.Wait()
	close(replies)
	answered := 0
	for a := range replies {
		switch {
		case a.err != nil:
			t.Fatalf("a request that waits got %v", a.err)
		case a.got.body == "run 1":
			answered++
		case a.got.problem != "in-flight" && a.got.problem != "overloaded" || a.got.header.Get("Retry-After") == "":
			t.Fatalf("a request that waits got %+v", a.got)
		}
	}
	s.ran(t, "order", 1)
	if slow > tolerable {
		t.Errorf("with %d waiting requests others took %v", many, slow)
	}
	if answered == 0 {
		t.Error("no request that waited got the answer")
	}
	t.Logf("%d of %d got the answer; others took %v", answered, many, slow)
}

// A caller that sends very many keys gets no more memory than its records take.
func TestAFloodOfKeysLeavesMemoryBounded(t *testing.T) {
	t.Parallel()
	keys := 100_000
	if testing.Short() {
		keys = 10_000
	}
	s := newService(t)
	p := newProxy(t, s.url, append(stores[0].flags(t), steady...)...)
	others(t, p, "warm", 50)
	before := p.memory(t)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < keys; i += workers {
				if got, err := post(t.Context(), p.url, fmt.Sprintf("flood-%d", i), ""); err != nil || got.body != "run 1" {
					t.Errorf("a request of the flood got %+v, %v", got, err)
					return
				}
			}
		})
	}
	slow := others(t, p, "other", 50)
	all.Wait()
	if grown := p.memory(t) - before; grown > int64(keys)*300+96<<20 {
		t.Errorf("%d keys take %d MiB", keys, grown>>20)
	}
	if slow > tolerable {
		t.Errorf("during a flood of keys others took %v", slow)
	}
}

// Clients that send a byte now and then hold no key and delay no other client.
func TestSlowClientsDelayNoOthers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := newProxy(t, s.url, append(stores[0].flags(t), steady...)...)
	address := strings.TrimPrefix(p.url, "http://")
	for i := range 200 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		head := fmt.Sprintf("POST /orders?check=slow-%d HTTP/1.1\r\nHost: a\r\nX-Api-Key: mallory\r\nIdempotency-Key: slow\r\nContent-Length: 1000\r\n", i)
		if i%2 == 0 {
			head += "\r\nx" // the body stays out
		}
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
	}
	if slow := others(t, p, "other", 100); slow > tolerable {
		t.Errorf("with slow clients others took %v", slow)
	}
	s.ran(t, "slow-0", 0)
	// The key of the slow clients is free.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/orders?check=free", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", "mallory")
	r.Header.Set("Idempotency-Key", "slow")
	answer, err := client.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("the key of slow clients gets %v, %v", answer, err)
	}
	answer.Body.Close()
	s.ran(t, "free", 1)
}
