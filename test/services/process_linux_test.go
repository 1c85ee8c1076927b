package services_test

import (
	"os"
	"testing"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestProcessIsIdentifiedByItsStartTime(t *testing.T) {
	t.Parallel()
	first, err := services.ProcessStart(os.Getpid())
	if again, err2 := services.ProcessStart(os.Getpid()); err != nil || err2 != nil || first == "" || again != first {
		t.Errorf("%q, %v, then %q, %v", first, err, again, err2)
	}
	if start, err := services.ProcessStart(1 << 30); err == nil {
		t.Errorf("a process that does not exist has started at %q", start)
	}
}

// A machine has few segments, and a test run that leaves some lets the starts of
// later runs fail.
func TestAKilledPostgresLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	exists, err := services.SharedMemory(server)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if !exists() {
		t.Fatal("the killed server has no shared memory: this test sees another segment")
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if exists() {
		t.Error("the shared memory of the closed server is still there")
	}
}
