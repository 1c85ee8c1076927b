package dedup

import (
	"context"
	"io"
	"os"
)

// Interruptible returns a reader of r whose reads end with the cause of ctx
// also while r is a pipe or a terminal whose other end pauses.
func Interruptible(ctx context.Context, r io.Reader) io.Reader {
	file, ok := r.(*os.File)
	if !ok {
		return r
	}
	return &patientReader{ctx: ctx, file: file}
}

// patientReader reads a file whose other end may pause. It waits until ctx
// ends, which is that of the call under way: decompressors take none.
type patientReader struct {
	ctx  context.Context
	file *os.File
	// interrupted is the cause of ctx's end once a read met it.
	interrupted error
}

// Read implements io.Reader.
func (r *patientReader) Read(p []byte) (int, error) {
	if r.interrupted = waitReadable(r.ctx, r.file); r.interrupted != nil {
		return 0, r.interrupted
	}
	return r.file.Read(p)
}
