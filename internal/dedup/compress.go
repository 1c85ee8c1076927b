package dedup

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// compression is how a file is compressed.
type compression string

const (
	asGzip compression = "gzip"
	asZstd compression = "zstd"
)

// compressionOf returns the compression that the ending of a file name stands
// for, and the name without that ending.
func compressionOf(name string) (c compression, rest string) {
	ending := filepath.Ext(name)
	rest = name[:len(name)-len(ending)]
	switch strings.ToLower(ending) {
	case ".gz", ".gzip":
		return asGzip, rest
	case ".zst", ".zstd":
		return asZstd, rest
	}
	return "", name
}

// frameBytes is how much content a frame has at most. A write error costs a run
// without a store no more than that.
const frameBytes = 64 << 20

// framer compresses an output as a series of frames: gzip members or zstd
// frames. A decompressor takes them as one. A file that is cut at the end of a
// frame is whole, so a run resumes there.
type framer struct {
	kind   compression
	file   *bufio.Writer
	coder  frameCoder
	opened bool
	size   int64 // content of the open frame
}

type frameCoder interface {
	io.WriteCloser
	Reset(io.Writer)
}

func newFramer(kind compression, to io.Writer) (*framer, error) {
	f := &framer{kind: kind, file: bufio.NewWriterSize(to, 64<<10)}
	if kind == asGzip {
		f.coder = gzip.NewWriter(f.file)
		return f, nil
	}
	var err error
	f.coder, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true))
	return f, err
}

// open starts a frame unless one is open.
func (f *framer) open() {
	if !f.opened {
		f.coder.Reset(f.file)
		f.opened, f.size = true, 0
	}
}

// write adds content to the open frame.
func (f *framer) write(data []byte) error {
	f.open()
	f.size += int64(len(data))
	_, err := f.coder.Write(data)
	return err
}

// seal ends the open frame and writes all of it.
func (f *framer) seal() error {
	if !f.opened {
		return nil
	}
	f.opened = false
	if err := f.coder.Close(); err != nil {
		return err
	}
	return f.file.Flush()
}

// isCompressed reports whether a file begins as compressed data does.
func isCompressed(path string, kind compression) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	magic := map[compression][]byte{asGzip: gzipMagic, asZstd: zstdMagic}[kind]
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(file, head); err != nil {
		return false, nil // it is shorter
	}
	return bytes.Equal(head, magic), nil
}

// decompressedSize returns the size of the content of a compressed file, and
// whether the content is whole lines.
func decompressedSize(path string) (size int64, whole bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	s, err := openStream(context.Background(), file, true)
	if err != nil {
		return 0, false, err
	}
	defer s.close()
	whole = true
	buf := make([]byte, 256<<10)
	for {
		n, err := s.plain.Read(buf)
		if n > 0 {
			size, whole = size+int64(n), buf[n-1] == '\n'
		}
		if err == io.EOF {
			return size, whole, nil
		} else if err != nil {
			return 0, false, s.explain(err)
		}
	}
}

// emptyFrame is more than the bytes of a frame without content.
const emptyFrame = 64

// holdsNothing reports whether a file of this size is a frame without content, which a
// run leaves that failed before its first line.
func (o *output) holdsNothing(size int64) bool {
	if o.compression == "" || size > emptyFrame {
		return false
	}
	content, _, err := decompressedSize(o.path)
	return err == nil && content == 0
}

// checkCompressed refuses to continue a file at a place that is not the end of
// a frame. foreign is set if the store did not write the file.
func (o *output) checkCompressed(foreign bool, p *problems) error {
	if o.compression == "" || o.base == 0 {
		return nil
	}
	is, err := isCompressed(o.path, o.compression)
	if err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	if !is {
		p.addf("%s %s: the content is not %s data, although the name says so: name another file", o.flag, o.name, o.compression)
		return nil
	}
	if !foreign {
		return nil
	}
	size, whole, err := decompressedSize(o.path)
	switch {
	case err != nil:
		p.addf("%s %s: nothing can be appended, because %s: name another file, or replace --append by --force", o.flag, o.name, reason(err))
	case !whole:
		p.addf("%s %s: nothing can be appended, because the last line has no line end: name another file, or replace --append by --force", o.flag, o.name)
	}
	o.content = size
	return nil
}
