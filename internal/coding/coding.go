// Package coding decompresses bodies of HTTP requests.
package coding

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strings"
)

// Known are the values of Content-Encoding that this package decodes.
const Known = "gzip, deflate"

// Decoder decompresses a body. It is nil for a body that is not compressed.
type Decoder func(*bufio.Reader) (io.Reader, error)

// Of returns the decoder of a body by its header. It is not known if the body has another
// coding, or several: a limit is for one.
func Of(h http.Header) (decode Decoder, known bool) {
	for coding := range strings.SplitSeq(strings.Join(h["Content-Encoding"], ","), ",") {
		var next Decoder
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "", "identity":
			continue
		case "gzip", "x-gzip":
			next = func(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) }
		case "deflate":
			next = inflate
		default:
			return nil, false
		}
		if decode != nil {
			return nil, false
		}
		decode = next
	}
	return decode, true
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
// have the coding in its header.
var (
	ErrLarge   = errors.New("the decompressed body is too large")
	ErrInvalid = errors.New("the body cannot be decompressed")
)

// Reader returns the decompressed body, which has at most most bytes. An empty body stays
// empty.
func (d Decoder) Reader(from io.Reader, most int64) io.Reader {
	return &decoded{from: bufio.NewReader(from), decode: d, left: most}
}

// decoded reads a compressed body.
type decoded struct {
	from   *bufio.Reader
	decode Decoder
	to     io.Reader // what decode returned, from the first Read on
	left   int64
}

// Read implements io.Reader.
func (d *decoded) Read(p []byte) (n int, err error) {
	if d.to == nil {
		d.to, err = d.decode(d.from)
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
	_, isCorrupt := errors.AsType[flate.CorruptInputError](err)
	switch {
	case errors.Is(err, io.EOF):
		if _, more := d.from.ReadByte(); more == nil {
			return 0, ErrInvalid // something follows the compressed data
		}
	case isCorrupt, errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err, zlib.ErrHeader), errors.Is(err, zlib.ErrChecksum), errors.Is(err, zlib.ErrDictionary), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, ErrInvalid
	}
	return n, err
}
