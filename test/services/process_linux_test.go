package services_test

import (
	"os"
	"testing"

	"github.com/semel-dev/semel/test/services"
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
