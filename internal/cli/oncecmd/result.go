package oncecmd

import (
	"bytes"
	"encoding/json"
	"os"
	"time"

	"github.com/semel-dev/semel"
)

// kept is the result of a command that ran. In the store it is a line of JSON, and behind it
// the start of the output.
type kept struct {
	Status int       `json:"status"`
	Host   string    `json:"host,omitempty"`
	Ended  time.Time `json:"ended"`
	// Written is how many bytes the command wrote to stdout.
	Written int64 `json:"written"`
	output  []byte
}

// resultHead is the most that the line of JSON takes.
const resultHead = 512

func newKept(status int, out *output) *kept {
	host, _ := os.Hostname() // it is for people
	return &kept{Status: status, Host: host[:min(len(host), 255)], Ended: time.Now().UTC().Truncate(time.Millisecond), Written: out.written, output: out.kept}
}

// encode returns the result for the store.
func (k *kept) encode() ([]byte, error) {
	line, err := json.Marshal(k)
	return append(append(line, '\n'), k.output...), err
}

// readKept reads a result. A key that an operator resolved has none, and counts as a success.
// ok is false if the key has a result that does not say how the command ended.
func readKept(r semel.Result) (k *kept, ok bool) {
	k = &kept{}
	if r.Kind == semel.NoResult {
		return k, true
	}
	line, output, ok := bytes.Cut(r.Data, []byte{'\n'})
	if r.Kind != semel.Value || !ok || json.Unmarshal(line, k) != nil || k.Ended.IsZero() {
		return nil, false
	}
	k.output = output
	return k, true
}
