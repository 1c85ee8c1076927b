package dedup

import (
	"context"
	"io"
	"os"
)

// Interruptible returns a reader of r. If r is a pipe or a terminal whose
// writer pauses, reads still end with the cause of ctx.
func Interruptible(ctx context.Context, r io.Reader) io.Reader {
	file, ok := r.(*os.File)
	if !ok {
		return r
	}
	return &interruptibleReader{ctx: ctx, file: file}
}

// interruptibleReader reads a file whose writer may pause. It waits until ctx ends.
// ctx is that of the running call, because decompressors take none.
type interruptibleReader struct {
	ctx  context.Context
	file *os.File
	// interrupted is the cause of ctx after a read met its end.
	interrupted error
	// ended is set after the end of the file. A terminal would wait for another
	// end.
	ended bool
}

// Read implements io.Reader.
func (r *interruptibleReader) Read(p []byte) (int, error) {
	if r.ended {
		return 0, io.EOF
	}
	if r.interrupted = waitReadable(r.ctx, r.file); r.interrupted != nil {
		return 0, r.interrupted
	}
	n, err := r.file.Read(p)
	r.ended = err == io.EOF
	return n, err
}
