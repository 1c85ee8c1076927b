// Package coding decompresses bodies of HTTP requests.
package coding

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Known are the values of Content-Encoding that this package decodes.
const Known = "gzip, deflate"

// Decoder begins to decompress. What it returns is closed at the end if it is an io.Closer.
type Decoder func(*bufio.Reader) (io.Reader, error)

// Codings are the codings of a body, in the order in which they were applied.
type Codings []Decoder

// most is how many codings a body may have. Each of them costs the memory of a decoder.
const most = 3

// Of returns the codings of a body by its header. also has the decoders of codings that only
// the caller knows, by their names in lower case. The codings are not known if one of them is
// not, or if there are too many.
func Of(h http.Header, also map[string]Decoder) (list Codings, known bool) {
	for name := range strings.SplitSeq(strings.Join(h["Content-Encoding"], ","), ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		next := also[name]
		switch name {
		case "", "identity":
			continue
		case "gzip", "x-gzip":
			next = func(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) }
		case "deflate":
			next = inflate
		}
		if next == nil || len(list) == most {
			return nil, false
		}
		list = append(list, next)
	}
	return list, true
}

// inflate reads the format zlib, as RFC 9110 wants it, and the bare format deflate, which
// some senders use instead.
func inflate(r *bufio.Reader) (io.Reader, error) {
	head, err := r.Peek(2)
	if err == nil && head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 { // the header of zlib
		return zlib.NewReader(r)
	}
	if len(head) == 0 {
		return nil, err
	}
	return flate.NewReader(r), nil
}

// ErrLarge means that a decompressed body exceeds its limit, and ErrInvalid that a body does not
// have the codings in its header.
var (
	ErrLarge   = errors.New("the decompressed body is too large")
	ErrInvalid = errors.New("the body cannot be decompressed")
)

// Reader returns the decompressed body. No coding may give more than limit bytes. An empty
// body stays empty. Every error of from but io.EOF counts as ErrInvalid, so from is a body
// that has arrived. The caller closes the Reader.
func (c Codings) Reader(from io.Reader, limit int64) io.ReadCloser {
	r := &reader{Reader: from}
	for _, decode := range slices.Backward(c) {
		stage := &decoded{from: bufio.NewReader(r.Reader), decode: decode, left: limit}
		r.stages = append(r.stages, stage)
		r.Reader = stage
	}
	return r
}

// reader reads the outermost of its stages, which is the last.
type reader struct {
	io.Reader
	stages []*decoded
}

// Close implements io.Closer. Its error would only repeat that of Read.
func (r *reader) Close() error {
	for _, stage := range r.stages {
		if c, ok := stage.to.(io.Closer); ok {
			_ = c.Close()
		}
	}
	return nil
}

// decoded reads what one coding gives.
type decoded struct {
	from   *bufio.Reader
	decode Decoder
	to     io.Reader // what decode returned, from the first Read on
	left   int64
}

// Read implements io.Reader.
func (d *decoded) Read(p []byte) (n int, err error) {
	if d.to == nil {
		if d.to, err = d.decode(d.from); err != nil {
			d.to = nil // it may be an interface with a nil pointer
		}
	}
	if err == nil {
		if int64(len(p)) > d.left+1 {
			p = p[:d.left+1] // one more, to see that it is too much
		}
		n, err = d.to.Read(p)
	}
	if d.left -= int64(n); d.left < 0 {
		return 0, ErrLarge
	}
	if errors.Is(err, io.EOF) {
		if _, err = d.from.ReadByte(); err == nil {
			return 0, ErrInvalid // something follows the compressed data
		}
	}
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, ErrLarge), errors.Is(err, ErrInvalid):
		return n, err
	}
	return 0, fmt.Errorf("%w: %w", ErrInvalid, err)
}
