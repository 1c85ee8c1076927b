package oncecmd

import (
	"io"
	"os"
	"time"
)

// output is the stdout of the command: it is passed on, and its start is kept.
type output struct {
	to      io.Writer
	most    int64
	kept    []byte
	written int64

	reader *os.File // nil if the command writes to stdout itself
	copied chan struct{}
}

// drainTime is how long the rest of the output may take after the end of the process group.
// Only a process that has left the group can still hold the pipe open.
const drainTime = time.Second

// Write implements io.Writer.
func (o *output) Write(data []byte) (int, error) {
	n, err := o.to.Write(data)
	o.written += int64(n)
	o.kept = append(o.kept, data[:min(int64(n), o.most-int64(len(o.kept)))]...)
	return n, err
}

// pipe returns the file to which the command writes. The caller closes it once the command has
// started.
func (o *output) pipe() (*os.File, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o.reader, o.copied = reader, make(chan struct{})
	return writer, nil
}

// copy passes the output on until its end. If that fails, for instance because the reader of
// stdout has ended, the command gets a broken pipe, as it would without this program.
func (o *output) copy() {
	defer close(o.copied)
	_, _ = io.Copy(writerOnly{o}, o.reader)
	_ = o.reader.Close() // it was only read
}

// writerOnly hides all methods but Write.
type writerOnly struct{ io.Writer }

// discard closes the pipe of a command that did not start.
func (o *output) discard() {
	if o.reader != nil {
		_ = o.reader.Close() // nothing was written
		o.reader = nil
	}
}

// end waits for the rest of the output.
func (o *output) end() {
	if o.reader == nil {
		return
	}
	_ = o.reader.SetReadDeadline(time.Now().Add(drainTime)) // it may be closed
	<-o.copied
}
