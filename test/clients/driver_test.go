//go:build unix

package clients

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// command is a line that a driver reads.
type command struct {
	// Call is the number of the command, which is in its answer.
	Call int `json:"call"`
	// Op is once, fork (the same in a child process that has the client of its parent), or
	// batch (a call for each of IDs, which share requests).
	Op string `json:"op"`
	// ID is a text, a number, true or false, a list of these, or {"base64":…} for bytes. Key
	// is its name in the journal.
	ID   json.RawMessage   `json:"id,omitempty"`
	Key  string            `json:"key,omitempty"`
	IDs  []json.RawMessage `json:"ids,omitempty"`
	Keys []string          `json:"keys,omitempty"`
	// N is how many concurrent calls to make.
	N int `json:"n,omitempty"`
	// Payload is compared with that of the first call, if it is there. Age is how many
	// seconds old the message is, if it is there.
	Payload json.RawMessage `json:"payload,omitempty"`
	Age     float64         `json:"age,omitempty"`
	// URL is that of the server. The others are options of the client, all durations in
	// words such as 30s. Timeout is how long one request may take.
	URL      string `json:"url"`
	Scope    string `json:"scope"`
	Policy   string `json:"on_lease_expired"`
	Lease    string `json:"lease"`
	Window   string `json:"window"`
	Wait     string `json:"wait"`
	RetryFor string `json:"retry_for"`
	Timeout  string `json:"timeout"`
	// Journal is where an effect posts {"key","attempt","token","pid"}, with the key of its
	// command. The answer is {"result":…}, or {"fail":…} with fail, permanent or unknown: the
	// effect then raises an error of its own, a permanent failure, or an unknown outcome.
	Journal string `json:"journal"`
	// Clock is how many seconds the wall clock of the driver is wrong.
	Clock int `json:"clock,omitempty"`
}

// answer is a line that a driver writes.
type answer struct {
	Call     int
	Outcomes []outcome // one for each concurrent call
}

// outcome is the value of a call, or the error that it raised: in_flight, unknown, mismatch,
// late, lease_lost, stale_token, unavailable, not_kept, permanent, refused, or effect for the
// error of the effect itself.
type outcome struct {
	Value   json.RawMessage
	Error   string
	Message string
}

// process is a driver that runs.
type process struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	log   safeLog
	ended chan struct{}

	mu      sync.Mutex // guards the fields below
	calls   int
	waiting map[int]chan []outcome
}

// start starts a driver. It ends with the test.
func (d *driver) start(t *testing.T) *process {
	t.Helper()
	p := &process{cmd: exec.Command(d.Command[0], d.Command[1:]...), ended: make(chan struct{}), waiting: map[int]chan []outcome{}}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stderr = d.dir, os.Environ(), &p.log
	for name, value := range d.Env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		lines := bufio.NewReader(output)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			var a answer
			if err := json.Unmarshal(line, &a); err != nil {
				t.Errorf("the driver wrote %.200q: %v", line, err)
				continue
			}
			p.mu.Lock()
			if waiting := p.waiting[a.Call]; waiting != nil {
				waiting <- a.Outcomes
			}
			p.mu.Unlock()
		}
		_ = p.cmd.Wait() // it is killed at the end
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // even if it was stopped
		<-p.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", d.Name, p.log.text())
		}
	})
	return p
}

// send sends a command, and returns where its outcomes come.
func (p *process) send(t *testing.T, c command) <-chan []outcome {
	t.Helper()
	p.mu.Lock()
	p.calls++
	c.Call = p.calls
	outcomes := make(chan []outcome, 1)
	p.waiting[c.Call] = outcomes
	p.mu.Unlock()
	line, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.input.Write(append(line, '\n')); err != nil {
		t.Fatalf("the driver does not read: %v", err)
	}
	return outcomes
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
