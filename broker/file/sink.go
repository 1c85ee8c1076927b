package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/vfs"
)

// SinkOptions are the options of OpenSink. The zero value is valid.
type SinkOptions struct {
	// Beside is a store whose Session writes to the file at other times. The
	// sink first cuts off an unfinished end of the session. The session keeps
	// the lines of the sink when it is opened again. Defaults to none.
	Beside *logstore.Store
	// FS is the file layer, for tests. Defaults to vfs.OS.
	FS vfs.FS
}

// Sink appends the bodies of messages to a file as lines. Delivered lines are
// synced. Concurrent deliveries share a sync.
//
// A body that contains line ends is written as compact JSON if it is JSON.
// Otherwise it is a permanent error.
//
// If a crash cuts a line short, the sink ends the line, and its message is
// delivered again as a whole. A Session leaves no such line.
type Sink struct {
	out    *output
	unlock io.Closer

	mu      sync.Mutex
	gather  *delivery // waits to be written; or nil
	writing bool
	closed  bool
}

// delivery is the data that is written and synced together.
type delivery struct {
	lines []byte
	turn  chan struct{} // gets one value when it can be written
	done  chan struct{}
	err   error
}

var _ pipeline.Sink = (*Sink)(nil)

var (
	errClosed = fmt.Errorf("file: %w", semel.ErrClosed)
	errNoLine = semel.Permanent(errors.New("file: the body has line ends and is not JSON, so it cannot be a line"))
)

// OpenSink opens a file to append to, or creates it. The error is a
// [*vfs.LockedError] if the file is open already. It wraps semel.ErrInvalidRequest
// if the store in Beside knows a different file.
func OpenSink(path string, opts *SinkOptions) (*Sink, error) {
	var o SinkOptions
	if opts != nil {
		o = *opts
	}
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	unlock, err := lockFile(o.FS, path)
	if err != nil {
		return nil, err
	}
	out, err := openOutput(o.FS, path)
	if err == nil {
		err = out.begin(o.Beside)
	}
	if err != nil {
		if out != nil {
			err = errors.Join(err, out.file.Close())
		}
		return nil, errors.Join(err, unlock.Close())
	}
	return &Sink{out: out, unlock: unlock}, nil
}

// Traits implements pipeline.Sink.
func (s *Sink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Parallel: 4, Ordered: true}
}

// Deliver implements pipeline.Sink. While the disk is full, or the file cannot
// be written, the sink is unavailable. After a failed sync the outcome is
// unknown. The unsynced data is cut off before the next write.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	fail := func(err error) {
		for _, it := range items {
			if it.Err == nil {
				it.Err = err
			}
		}
	}
	if ctx.Err() != nil {
		fail(context.Cause(ctx))
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		fail(errClosed)
		return
	}
	d := s.gather
	lead := false
	if d == nil {
		d = &delivery{turn: make(chan struct{}, 1), done: make(chan struct{})}
		s.gather, lead = d, !s.writing
	}
	d.lines = appendLines(d.lines, items, func(int, []byte) {})
	if lead {
		s.gather, s.writing = nil, true
	}
	s.mu.Unlock()
	if !lead {
		select {
		case <-d.done:
			fail(d.err)
			return
		case <-d.turn:
		}
	}
	d.err = s.out.appendSync(d.lines)
	close(d.done)
	s.pass()
	fail(d.err)
}

// pass lets one of the waiting callers write the next delivery.
func (s *Sink) pass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = s.gather != nil
	if s.writing {
		s.gather.turn <- struct{}{}
		s.gather = nil
	}
}

// Close implements pipeline.Sink.
func (s *Sink) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.out.file.Close(), s.unlock.Close())
}

// appendLines appends the bodies of items as lines. An item that cannot be a line gets its
// error, and those behind it in its group are not written. wrote is called for each item.
func appendLines(dst []byte, items []*pipeline.Item, wrote func(i int, dst []byte)) []byte {
	var failed uint64 // the items of a group stand together
	for i, it := range items {
		switch {
		case failed != 0 && it.Group == failed:
			it.Err = pipeline.ErrBehind
		default:
			if dst, it.Err = appendLine(dst, it.Message.Body); it.Err != nil {
				failed = it.Group
			}
		}
		wrote(i, dst)
	}
	return dst
}

func appendLine(dst, body []byte) ([]byte, error) {
	if bytes.IndexByte(body, '\n') < 0 {
		return append(append(dst, body...), '\n'), nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, body); err != nil {
		return dst, errNoLine
	}
	return append(append(dst, compact.Bytes()...), '\n'), nil
}

// output is a file that lines are appended to. It is for one goroutine.
type output struct {
	fs   vfs.FS
	path string
	file vfs.File
	// length is the durable length. written includes data that may be there.
	length, written int64
	bySink          bool // no session has written it
}

// openOutput opens a file to append to, or creates it so that its name is
// durable. The user chose the file, so it may be a symbolic link to a file.
func openOutput(fsys vfs.FS, path string) (*output, error) {
	at := path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		at = target
	}
	file, err := fsys.Open(at)
	if errors.Is(err, fs.ErrNotExist) {
		if file, err = fsys.Create(at); err == nil {
			err = fsys.SyncDir(filepath.Dir(at))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	size, err := file.Size()
	if err != nil {
		return nil, fmt.Errorf("file: %w", errors.Join(err, file.Close()))
	}
	return &output{fs: fsys, path: path, file: file, length: size, written: size}, nil
}

// begin prepares the file for whole lines. A store may know its length.
func (o *output) begin(beside *logstore.Store) error {
	known := false
	var err error
	if beside != nil {
		known, err = o.resume(beside)
	}
	if err == nil && !known {
		o.bySink, err = true, o.endLine()
	}
	switch {
	case err != nil:
		return err
	case beside != nil: // it waits only for the disk, as all of this does
		return o.mark(context.Background(), beside, true)
	}
	return o.sync()
}

// endLine ends a last line that has no line end.
func (o *output) endLine() error {
	if o.length == 0 {
		return nil
	}
	last := make([]byte, 1)
	if _, err := o.file.ReadAt(last, o.length-1); err != nil {
		return fmt.Errorf("file: read %s: %w", o.path, err)
	}
	if last[0] == '\n' {
		return nil
	}
	if _, err := o.file.WriteAt([]byte{'\n'}, o.length); err != nil {
		return fmt.Errorf("file: write %s: %w", o.path, err)
	}
	o.length++
	o.written = o.length
	return nil
}

// write appends data. After an error none of it is in the file.
func (o *output) write(data []byte) error {
	if err := o.truncate(); err != nil {
		return err
	}
	if _, err := o.file.WriteAt(data, o.length); err != nil {
		o.written = o.length + int64(len(data))
		return errors.Join(fmt.Errorf("file: write %s: %w", o.path, err), o.truncate())
	}
	return nil
}

// truncate removes data that may be after the length.
func (o *output) truncate() error {
	if o.written == o.length {
		return nil
	}
	if err := o.file.Truncate(o.length); err != nil {
		return fmt.Errorf("file: cut %s to %d bytes: %w", o.path, o.length, err)
	}
	o.written = o.length
	return nil
}

func (o *output) sync() error {
	if err := o.file.Sync(); err != nil {
		return fmt.Errorf("file: sync %s: %w", o.path, err)
	}
	return nil
}

// appendSync appends data durably.
func (o *output) appendSync(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	if err := o.write(data); err != nil {
		return pipeline.Unavailable(err, 0)
	}
	o.written = o.length + int64(len(data))
	if err := o.sync(); err != nil {
		return fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)
	}
	o.length = o.written
	return nil
}
