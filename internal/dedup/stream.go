package dedup

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/framing"
)

// stream is one open input, decompressed.
type stream struct {
	raw  io.Reader
	file *os.File // the raw file, if the input is a file of the operating system
	own  bool     // file is closed with the stream
	zstd *zstd.Decoder

	// coded and plain hold bytes that were read ahead to recognise the content.
	// They are the same if nothing is compressed. Larger reads bypass them.
	coded, plain *bufio.Reader
	compression  string
	divided      bool // plain has documents as lines

	// live is set if the writer may pause, so that a read may take forever. All
	// reads of file then go through interruptible.
	live          bool
	interruptible *interruptibleReader
}

// These bytes identify compressed data and the byte order mark.
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	utf8Mark  = []byte{0xef, 0xbb, 0xbf}

	zstdSkippable = []byte{0x50, 0x2a, 0x4d, 0x18} // the first byte is 0x50 to 0x5f
)

// openStream reads enough of raw to recognise compressed data. It waits for a
// live input until ctx ends.
func openStream(ctx context.Context, raw io.Reader, own bool) (*stream, error) {
	s := &stream{raw: raw, live: true}
	if file, ok := raw.(*os.File); ok {
		s.file, s.own = file, own
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			s.live = false
		} else {
			s.interruptible = &interruptibleReader{ctx: ctx, file: file}
			raw = s.interruptible
		}
	}
	s.coded = bufio.NewReaderSize(raw, 64<<10)
	s.plain = s.coded
	if err := s.decompress(); err != nil {
		err = s.explain(err)
		s.close()
		return nil, err
	}
	return s, nil
}

// decompress recognises compressed content and sets plain.
func (s *stream) decompress() (err error) {
	switch {
	case beginsWith(s.coded, gzipMagic):
		s.compression = "gzip"
		members := &gzipMembers{coded: s.coded}
		if err := members.open(); err != nil {
			return err
		}
		s.plain = bufio.NewReaderSize(members, 64<<10)
	case beginsWith(s.coded, zstdMagic), beginsWithSkippable(s.coded):
		s.compression = "zstd"
		// With one goroutine the decoder does not read ahead, so lines from a
		// pipe come out as early as possible.
		s.zstd, err = zstd.NewReader(s.coded, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			return err
		}
		s.plain = bufio.NewReaderSize(s.zstd, 64<<10)
	}
	if s.interruptible != nil {
		return s.interruptible.interrupted
	}
	return nil
}

// divide makes plain the JSON documents of the stream, each on a line.
func (s *stream) divide() {
	s.divided = true
	s.plain = bufio.NewReaderSize(framing.NewLines(s.plain, MaxLine), 64<<10)
}

// beginsWith compares byte by byte. A live input may have fewer bytes than
// magic, and more may not come for a long time.
func beginsWith(r *bufio.Reader, magic []byte) bool {
	for n := 1; n <= len(magic); n++ {
		head, err := r.Peek(n)
		if err != nil || !bytes.Equal(head, magic[:n]) {
			return false
		}
	}
	return true
}

// beginsWithSkippable reports whether the data starts with a skippable zstd
// frame. The magic number of such frames has 16 possible first bytes.
func beginsWithSkippable(r *bufio.Reader) bool {
	head, err := r.Peek(1)
	return err == nil && head[0]&0xf0 == zstdSkippable[0] && beginsWith(r, append([]byte{head[0]}, zstdSkippable[1:]...))
}

// gzipMembers reads the members of gzip data one after the other. It looks for
// the next member when the caller wants more data, not when a member ends.
// Otherwise the last line of a member would wait until a pipe delivers the next
// member.
type gzipMembers struct {
	coded  *bufio.Reader
	member gzip.Reader
	inside bool
	begun  bool // a member was opened
	err    error
}

// errBehindGzip ends a reader of gzip data behind which there are other bytes.
var errBehindGzip = errors.New("other bytes are behind the end of the gzip data: pass the input through gzip -dc, which ignores them, or get the file again")

// open reads the header of a member.
func (g *gzipMembers) open() error {
	if g.begun {
		// The reader has one byte at least.
		if head, err := g.coded.Peek(len(gzipMagic)); !bytes.HasPrefix(gzipMagic, head) && !bytes.Equal(head, gzipMagic) && (err == nil || err == io.EOF) {
			return errBehindGzip
		}
	}
	g.begun = true
	err := g.member.Reset(g.coded)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	g.member.Multistream(false)
	g.inside = err == nil
	return err
}

// Read implements io.Reader.
func (g *gzipMembers) Read(p []byte) (n int, err error) {
	for n == 0 && g.err == nil {
		if !g.inside {
			if g.err = g.skipPadding(); g.err == nil {
				g.err = g.open()
			}
			continue
		}
		if n, g.err = g.member.Read(p); g.err == io.EOF {
			g.inside, g.err = false, nil
		}
	}
	return n, g.err
}

// skipPadding skips zeros after a member, which tapes and block devices leave.
// It returns io.EOF if nothing else follows.
func (g *gzipMembers) skipPadding() error {
	for {
		head, err := g.coded.Peek(1)
		if err != nil || head[0] != 0 {
			return err
		}
		if _, err := g.coded.Discard(1); err != nil {
			return err
		}
	}
}

// read reads decompressed bytes. It waits for a live input until ctx ends.
func (s *stream) read(ctx context.Context, p []byte) (int, error) {
	s.until(ctx)
	n, err := s.plain.Read(p)
	return n, s.explain(err)
}

// until makes reads of a live input wait until ctx ends.
func (s *stream) until(ctx context.Context) {
	if s.interruptible != nil {
		s.interruptible.ctx = ctx
	}
}

// pauses reports whether a read may have to wait for the writer. With
// compressed data a read may wait even if some bytes are there, because the
// decompressor may need more.
func (s *stream) pauses() bool {
	switch {
	case !s.live || s.plain.Buffered() > 0:
		return false
	case s.compression != "" || s.divided:
		return true
	}
	return s.file == nil || !readable(s.file)
}

// explain says what an error in compressed data means.
func (s *stream) explain(err error) error {
	switch {
	case err == nil || err == io.EOF || s.compression == "":
		return err
	case s.interruptible != nil && s.interruptible.interrupted != nil:
		return s.interruptible.interrupted
	case errors.Is(err, errBehindGzip):
		return err
	case isMalformed(err):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the %s data ends early: get the whole file", s.compression)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum),
		errors.Is(err, zstd.ErrCRCMismatch), errors.Is(err, zstd.ErrMagicMismatch):
		return fmt.Errorf("the %s data is damaged: get the file again", s.compression)
	}
	if _, outside := errors.AsType[*fs.PathError](err); outside {
		return fmt.Errorf("the %s data cannot be read: %w", s.compression, err)
	}
	return fmt.Errorf("the %s data is damaged (%w): get the file again", s.compression, err)
}

// isMalformed reports whether an error is about the documents, and not about compressed data.
func isMalformed(err error) bool {
	_, is := errors.AsType[*framing.StreamError](err)
	return is
}

// explainEnd is explain for a read that expects a whole line. The end of the
// input is not an error.
func (s *stream) explainEnd(err error) error {
	if err == io.EOF {
		return nil
	}
	return s.explain(err)
}

// skip moves to an offset in the decompressed bytes of a stream from which
// nothing was read. It passes the skipped bytes to seen if seen is not nil.
func (s *stream) skip(ctx context.Context, offset int64, seen func([]byte)) error {
	if s.compression == "" && !s.divided && !s.live && seen == nil {
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

// rawOffset returns how many bytes of the file were read, or 0 if that is not
// known.
func (s *stream) rawOffset() int64 {
	if s.live {
		return 0
	}
	offset, err := s.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0 // the value is only shown to people
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

// foreign is an encoding that dedup does not read.
type foreign struct {
	name    string
	magic   []byte
	at      int    // position of magic
	command string // prints the content of the file whose name follows
}

var foreignKinds = []foreign{
	{"xz", []byte("\xfd7zXZ\x00"), 0, "xz -dc"},
	{"bzip2", []byte("BZh91AY&SY"), 0, "bzip2 -dc"},
	{"a zip archive", []byte("PK\x03\x04"), 0, "unzip -p"},
	{"UTF-16", []byte("\xff\xfe"), 0, "iconv -f UTF-16 -t UTF-8"},
	{"UTF-16", []byte("\xfe\xff"), 0, "iconv -f UTF-16 -t UTF-8"},
	{"a tar archive", []byte("ustar"), 257, "tar -xOf"},
}

// checkForeign refuses content that is not lines. It does not wait for more bytes of a
// live stream than it needs.
func (s *stream) checkForeign(name string) error {
	for _, f := range foreignKinds {
		if f.at == 0 && !beginsWith(s.plain, f.magic) {
			continue
		}
		if f.at > 0 {
			if s.live {
				continue
			}
			head, err := s.plain.Peek(f.at + len(f.magic))
			if err != nil || !bytes.Equal(head[f.at:], f.magic) {
				continue
			}
		}
		if name == Stdio {
			return fmt.Errorf("this is %s: pass it through %s first", f.name, f.command)
		}
		return fmt.Errorf("this is %s: write %s %s | semel dedup and the flags", f.name, f.command, shellWord(name))
	}
	if s.live {
		return nil
	}
	head, _ := s.plain.Peek(64) // a later read reports an error
	if is := diagnose.ForeignFile(head); is != "" {
		return errors.New("this " + is)
	}
	return nil
}

// checkSeparated refuses rows that should be read as a stream of JSON documents.
func (s *stream) checkSeparated() error {
	if s.live {
		return nil
	}
	head, _ := s.plain.Peek(s.plain.Size()) // a later read reports an error
	line, _, _ := bytes.Cut(bytes.TrimPrefix(head, utf8Mark), []byte{'\n'})
	if end := bytes.IndexAny(line, ",;\t"); end < 0 || line[0] == '"' || json.Valid(line[:end]) {
		return nil
	}
	if text := separated(line); text != "" {
		return errors.New(strings.Replace(text, ": add ", ": write ", 1))
	}
	return nil
}

// checkLineEnds refuses a file whose lines end with CR alone. All of it would be one
// line, and all duplicates would pass. A live stream is checked when it has ended.
func (s *stream) checkLineEnds(name string) error {
	if s.live {
		return nil
	}
	head, _ := s.plain.Peek(s.plain.Size()) // a later read reports an error
	if !onlyCR(head) {
		return nil
	}
	command := "cat"
	if s.compression != "" {
		command = s.compression + " -dc"
	}
	return fmt.Errorf("%w: write %s %s | tr '\\r' '\\n' | semel dedup and the flags", errOnlyCR, command, shellWord(name))
}

var errOnlyCR = errors.New("the lines end with a carriage return (CR) alone, as in old exports for Macintosh")

// onlyCR reports whether text has carriage returns within, and no line feed.
func onlyCR(text []byte) bool {
	i := bytes.IndexByte(text, '\r')
	return i >= 0 && i < len(text)-1 && bytes.IndexByte(text, '\n') < 0
}

// separated suggests a format for the first line of an input that is not JSON. A
// header has at least two names, and a person put the same sign between them.
func separated(line []byte) string {
	text := strings.TrimSpace(string(line))
	for _, c := range []struct{ sign, name, flags string }{
		{",", "CSV", "--format csv"},
		{"\t", "TSV", "--format tsv"},
		{";", "CSV", "--format csv --delimiter ';'"},
	} {
		names := strings.Split(text, c.sign)
		if len(names) < 2 {
			continue
		}
		for i, name := range names {
			if name = strings.Trim(strings.TrimSpace(name), `"`); name == "" || strings.ContainsAny(name, `{}[]:,;"`) {
				return ""
			}
			names[i] = name
		}
		return fmt.Sprintf("line 1 looks like %s (%s): add %s", c.name, shorten(strings.Join(names, ",")), c.flags)
	}
	return ""
}

// shorten returns the start of a text.
func shorten(text string) string {
	const most = 60
	runes := []rune(text)
	if len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
