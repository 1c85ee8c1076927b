package kafka

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestThirdPartyConsumerSeesEachKeyOnce moves messages while programs and broker are
// killed, and has librdkafka read the output as well. A mistake about transactions that
// the client of the programs makes at both ends would stay unseen otherwise.
func TestThirdPartyConsumerSeesEachKeyOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("librdkafka reads in `make test-full`, which installs it")
	}
	t.Parallel()
	module := servicestest.Program(t, services.Librdkafka)
	program := built(t)
	seed, random := chooseSeed(t)
	moveOnce(t, *messages*3/10, shuffled(random, allEnds, max(*kills-1, 2)), seed, func(t *testing.T, addr string, i int) process {
		t.Helper()
		return newOnce(t, program, addr, i)
	}, func(t *testing.T, addr string) *reader {
		t.Helper()
		return newLibrdkafka(t, module, addr)
	})
}

// newLibrdkafka returns a reader in a process of Python.
func newLibrdkafka(t *testing.T, module, addr string) *reader {
	t.Helper()
	cmd := exec.Command("python3", filepath.Join("testdata", "librdkafka.py"), addr, "out", fmt.Sprint(outPartitions))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Dir(filepath.Dir(module)))
	var said bytes.Buffer
	cmd.Stderr = &said
	input, err := cmd.StdinPipe()
	must(t, err)
	output, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	r := &reader{stop: func() { _ = input.Close() }, done: make(chan struct{})} // it ends with its input
	go func() {
		defer close(r.done)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			var partition int32
			var key, value string
			if err := json.Unmarshal(lines.Bytes(), &[]any{&partition, &key, &value}); err != nil {
				t.Errorf("librdkafka wrote %q: %v", lines.Bytes(), err)
				break
			}
			r.mu.Lock()
			r.add(partition, key, value)
			r.mu.Unlock()
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("librdkafka ended with %v", err)
		}
		if t.Failed() {
			t.Logf("librdkafka said:\n%s", said.Bytes())
		}
	}()
	return r
}
