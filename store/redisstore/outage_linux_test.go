package redisstore

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel"
)

func TestDiskErrorRefusesAsUnavailable(t *testing.T) {
	t.Parallel()
	// A snapshot that cannot be written makes the server refuse writes.
	o := newOutage(t, nil, "--appendonly", "no", "--save", "3600 1")
	done := o.done()
	do(t, o.server.Addr(), "CONFIG", "SET", "rdb-key-save-delay", "10000000")
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

// killChild ends the one child of a server, which writes a snapshot.
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
