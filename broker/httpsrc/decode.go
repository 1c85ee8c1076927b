package httpsrc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/semel-dev/semel/internal/coding"
)

// codings are the values of Content-Encoding that a source decodes.
const codings = coding.Known + ", zstd"

// maxWindow is how far back a zstd body may refer: RFC 9659 wants senders to keep to it.
const maxWindow = 8 << 20

// decoders decompress bodies. Each decoder takes memory that depends on the body, so a few
// bodies are decompressed at a time, and none that still arrives.
type decoders struct {
	most  int64         // bytes of a body
	slots chan struct{} // has room for the bodies that are decompressed at a time
	zstds sync.Pool     // decoders that are not in use
}

func newDecoders(most int64) *decoders {
	return &decoders{most: most, slots: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))}
}

// of returns the codings of a body, or the answer that refuses them.
func (d *decoders) of(h http.Header) (coding.Codings, *answer) {
	// One decoder of zstd takes as much as maxWindow.
	zstds := strings.Count(strings.ToLower(strings.Join(h["Content-Encoding"], ",")), "zstd")
	if list, known := coding.Of(h, map[string]coding.Decoder{"zstd": d.zstd}); known && zstds <= 1 {
		return list, nil
	}
	return nil, &answer{status: http.StatusUnsupportedMediaType, text: fmt.Sprintf("a body with Content-Encoding: %.100q cannot be read: send it with %s, or without", h["Content-Encoding"], codings)}
}

// decode returns a body without its codings, or the answer that refuses it. The body takes
// its bytes from the bound instead of those that were sent.
func (d *decoders) decode(ctx context.Context, list coding.Codings, sent []byte, held *hold) ([]byte, *answer) {
	if len(list) == 0 {
		return sent, nil
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return nil, later("not accepted: send it again")
	}
	decoder := list.Reader(bytes.NewReader(sent), d.most)
	defer decoder.Close()
	body, err := readAll(decoder, -1, held)
	switch {
	case err == nil:
		held.add(-int64(len(sent)))
		return body, nil
	case errors.Is(err, errFull):
		return nil, later(full)
	case errors.Is(err, coding.ErrLarge):
		return nil, tooLarge(d.most)
	}
	return nil, &answer{status: http.StatusBadRequest, text: "the body is not what its Content-Encoding says: it cannot be decompressed"}
}

// zstd begins to decompress a body.
func (d *decoders) zstd(from *bufio.Reader) (io.Reader, error) {
	if head, err := from.Peek(4); len(head) > 0 && err != nil {
		return nil, io.ErrUnexpectedEOF // the decoder takes a single byte for the end
	}
	decoder, ok := d.zstds.Get().(*zstd.Decoder)
	if !ok {
		var err error
		if decoder, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err != nil {
			return nil, err
		}
	}
	return &zstdReader{decoder, d}, decoder.Reset(from)
}

// zstdReader gives its decoder back.
type zstdReader struct {
	*zstd.Decoder
	of *decoders
}

// Close implements io.Closer.
func (r *zstdReader) Close() error {
	_ = r.Reset(nil) // always succeeds
	r.of.zstds.Put(r.Decoder)
	return nil
}
