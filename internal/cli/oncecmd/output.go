package oncecmd

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// output is the stdout of the command: it is passed on, and its start is kept.
type output struct {
	to      io.Writer
	most    int64
	kept    []byte
	written int64
	failed  error // of stdout, unless its reader has ended

	reader *os.File // nil if the command writes to stdout itself
	ended  atomic.Bool
	copied chan struct{}
}

// After the end of the process group, only a process that has left the group can still write.
// drainTime is how long this program waits for that in all, and drainBytes how much may come.
// The content of the pipe is at most as long, and is read however late it is: the host may have
// stood still.
const (
	drainTime  = time.Second
	drainBytes = 1 << 20
)

// Write implements io.Writer.
func (o *output) Write(data []byte) (int, error) {
	n, err := o.to.Write(data)
	o.written += int64(n)
	o.kept = append(o.kept, data[:min(int64(n), o.most-int64(len(o.kept)))]...)
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		o.failed = err
	}
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
	buffer := make([]byte, 32<<10)
	patience := drainTime
	for left := drainBytes; left > 0; {
		ended, began := o.ended.Load(), time.Now()
		if ended { // stdout may have been slow since the last one
			_ = o.reader.SetReadDeadline(began.Add(patience)) // it is open
		}
		n, err := o.reader.Read(buffer)
		if ended && n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			n, err = readNow(o.reader, buffer)
		}
		if ended {
			left -= n
			patience -= time.Since(began)
		}
		if n > 0 {
			if _, err := o.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil && (ended || !errors.Is(err, os.ErrDeadlineExceeded)) {
			break
		}
	}
	_ = o.reader.Close() // it was only read
}

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
	// So copy sees that, and then sets a deadline of its own; the pipe may be closed.
	_ = o.reader.SetReadDeadline(time.Now())
	o.ended.Store(true)
	<-o.copied
}
