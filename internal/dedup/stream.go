package dedup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// stream is one open input, decompressed.
type stream struct {
	raw  io.Reader
	file *os.File // raw, if it is a file of the operating system
	own  bool     // file is closed with the stream
	zstd *zstd.Decoder

	// coded and plain hold what was read ahead to recognise the content; they
	// are one where nothing is compressed. Larger reads go past them.
	coded, plain *bufio.Reader
	compression  string

	// live: the other end may pause, so a read may take forever.
	live bool
}

// The content by which compressed data is recognised, and the byte order mark.
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	utf8Mark  = []byte{0xef, 0xbb, 0xbf}
)

// openStream reads as much of raw as it takes to recognise compressed data. It
// waits for a live input until ctx ends.
func openStream(ctx context.Context, raw io.Reader, own bool) (*stream, error) {
	s := &stream{raw: raw, live: true}
	if file, ok := raw.(*os.File); ok {
		s.file, s.own = file, own
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			s.live = false
		}
	}
	s.coded = bufio.NewReaderSize(raw, 64<<10)
	s.plain = s.coded
	if s.live && s.file != nil {
		if err := waitReadable(ctx, s.file); err != nil {
			s.close()
			return nil, err
		}
	}
	var err error
	switch {
	case beginsWith(s.coded, gzipMagic):
		s.compression = "gzip"
		var z *gzip.Reader
		if z, err = gzip.NewReader(s.coded); err == nil {
			s.plain = bufio.NewReaderSize(z, 64<<10)
		}
	case beginsWith(s.coded, zstdMagic):
		s.compression = "zstd"
		// One goroutine less, and a decoder that does not read ahead: what is
		// written to a pipe comes out as soon as it can.
		if s.zstd, err = zstd.NewReader(s.coded, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30)); err == nil {
			s.plain = bufio.NewReaderSize(s.zstd, 64<<10)
		}
	}
	if err != nil {
		s.close()
		return nil, s.explain(err)
	}
	return s, nil
}

// beginsWith compares byte by byte, for a live input may hold fewer bytes than
// are compared, and no more may come for long.
func beginsWith(r *bufio.Reader, magic []byte) bool {
	for n := 1; n <= len(magic); n++ {
		head, err := r.Peek(n)
		if err != nil || !bytes.Equal(head, magic[:n]) {
			return false
		}
	}
	return true
}

// Read reads decompressed bytes. It waits for a live input until ctx ends.
func (s *stream) read(ctx context.Context, p []byte) (int, error) {
	if s.live && s.file != nil && !s.buffered() {
		if err := waitReadable(ctx, s.file); err != nil {
			return 0, err
		}
	}
	n, err := s.plain.Read(p)
	return n, s.explain(err)
}

// pauses reports that a read may have to wait for the other end.
func (s *stream) pauses() bool {
	return s.live && !s.buffered() && (s.file == nil || !readable(s.file))
}

func (s *stream) buffered() bool { return s.plain.Buffered() > 0 || s.coded.Buffered() > 0 }

// explain says of an error in compressed data what it means.
func (s *stream) explain(err error) error {
	switch {
	case err == nil || err == io.EOF || s.compression == "":
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the %s data ends early: get the whole file", s.compression)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum),
		errors.Is(err, zstd.ErrCRCMismatch), errors.Is(err, zstd.ErrMagicMismatch):
		return fmt.Errorf("the %s data is damaged: get the file again", s.compression)
	}
	return fmt.Errorf("the %s data cannot be read: %w", s.compression, err)
}

// explainEnd is explain for a read that was to find a whole line: the end of
// the input is no error.
func (s *stream) explainEnd(err error) error {
	if err == io.EOF {
		return nil
	}
	return s.explain(err)
}

// skip goes to an offset in the decompressed bytes of a stream of which nothing
// was read, and passes what it reads on the way to seen, if that is not nil.
func (s *stream) skip(ctx context.Context, offset int64, seen func([]byte)) error {
	if s.compression == "" && !s.live && seen == nil {
		if _, err := s.file.Seek(offset, io.SeekStart); err != nil {
			return err
		}
		s.coded.Reset(s.raw)
		return nil
	}
	buf := make([]byte, 256<<10)
	for offset > 0 && ctx.Err() == nil {
		n, err := s.read(ctx, buf[:min(offset, int64(len(buf)))])
		if seen != nil {
			seen(buf[:n])
		}
		if offset -= int64(n); err == io.EOF && offset > 0 {
			return io.ErrUnexpectedEOF
		} else if err != nil && offset > 0 {
			return err
		}
	}
	return context.Cause(ctx)
}

// rawOffset returns how much of the file was read, 0 if it is not known.
func (s *stream) rawOffset() int64 {
	if s.live {
		return 0
	}
	offset, err := s.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0 // it is for people to look at
	}
	return offset
}

func (s *stream) close() {
	if s.zstd != nil {
		s.zstd.Close()
	}
	if s.own {
		s.file.Close()
	}
}
