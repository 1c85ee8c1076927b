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
	return readerFunc(func(p []byte) (int, error) {
		if err := waitReadable(ctx, file); err != nil {
			return 0, err
		}
		return file.Read(p)
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
