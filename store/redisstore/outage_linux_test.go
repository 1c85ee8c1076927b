package redisstore

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services"
)

func TestDiskErrorRefusesAsUnavailable(t *testing.T) {
	t.Parallel()
	// The server refuses writes after it failed to write a snapshot.
	o := newOutage(t, nil, "--appendonly", "no", "--save", "3600 1")
	done := o.done()
	do(t, o.server.Addr(), "CONFIG", "SET", "rdb-key-save-delay", "300000000")
	do(t, o.server.Addr(), "BGSAVE")
	eventually(t, func() bool {
		return fields(do(t, o.server.Addr(), "INFO", "persistence").(string))["rdb_bgsave_in_progress"] == "1"
	}, "the snapshot is under way")
	killChild(t, o.server.PID())
	eventually(t, func() bool {
		return fields(do(t, o.server.Addr(), "INFO", "persistence").(string))["rdb_last_bgsave_status"] == "err"
	}, "the snapshot failed")
	o.wantRefusal(o.key(), semel.ErrStoreUnavailable, semel.ClassRetryable)
	o.wantFault("MISCONF")
	o.claim(request(done), semel.Duplicate)
	do(t, o.server.Addr(), "CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
	o.claim(request(o.key()), semel.Fresh)
}

// killChild kills the only child of a server, which writes a snapshot.
func killChild(t *testing.T, server int) {
	t.Helper()
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", server, server))
	if err != nil {
		t.Fatal(err)
	}
	children := strings.Fields(string(list))
	if len(children) != 1 {
		t.Fatalf("the server has the children %v; want one", children)
	}
	child, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// waiting reports whether the sockets of a server hold bytes that it has not
// read.
func waiting(t *testing.T, server *services.Server) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	local := fmt.Sprintf(":%04X", server.Port())
	for line := range strings.Lines(string(table)) {
		// fields: number, local address, remote address, state, sent:received
		part := strings.Fields(line)
		if len(part) > 4 && strings.HasSuffix(part[1], local) && part[3] == "01" && !strings.HasSuffix(part[4], ":00000000") {
			return true
		}
	}
	return false
}

func TestClaimUnderWayWhenTheClientClosesIsUnknown(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	req := request(o.key())
	o.client.Close() // it sends pings, which the server would not read either
	client := oneWire(t, o.server.URL(), time.Minute)
	store, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.server.Pause(); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := askFor(t.Context(), store, req)
		result <- err
	}()
	eventually(t, func() bool { return waiting(t, o.server) }, "the claim is on its way")
	client.Close()
	if err := <-result; semel.Classify(err) != semel.ClassUnknown {
		t.Errorf("claim: %v of class %v; want an unknown outcome", err, semel.Classify(err))
	}
	if _, err := askFor(t.Context(), store, req); !errors.Is(err, semel.ErrClosed) || semel.Classify(err) != semel.ClassPermanent {
		t.Errorf("claim of a closed client: %v of class %v; want closed", err, semel.Classify(err))
	}
}
