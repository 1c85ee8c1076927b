// Package auditlog appends lines to an audit log and finds lines that were changed
// afterwards. A log is a file of JSON objects, one a line. Each line ends with two
// members that chain it to the line before:
//
//	,"prev":"…","hash":"…"}
//
// prev is the hash of the line before. If that line has none, because an older
// program wrote it or a crash cut it short, prev is the SHA-256 of all bytes before
// this line. hash is the SHA-256 of the bytes of this line before `,"hash"`. Both
// are 64 lower-case hexadecimal digits.
package auditlog

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

const (
	prevMember = `,"prev":"`
	hashMember = `,"hash":"`
	lineEnd    = `"}`
	digits     = 2 * sha256.Size
	// chained is the length of the two members and the end of a line.
	chained = len(prevMember) + digits + len(`"`) + len(hashMember) + digits + len(lineEnd)
)

// Append appends a line to a log and syncs the file. The line is a JSON object with
// at least one member, without a line end. If it is not, the error wraps
// semel.ErrInvalidRequest. If a crash cut the last line of the log short, Append ends
// it first. The caller prevents concurrent calls for one file.
func Append(f vfs.File, line []byte) error {
	if !json.Valid(line) || line[0] != '{' || line[len(line)-1] != '}' || bytes.ContainsAny(line, "\r\n") || len(line) == len("{}") {
		return fmt.Errorf("a line of an audit log must be a JSON object with members, in one line: %w", semel.ErrInvalidRequest)
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	start, prev, err := end(f, size)
	if err != nil {
		return err
	}
	text := append([]byte(start), line[:len(line)-1]...)
	text = append(text, prevMember+prev+`"`...)
	text = append(text, hashMember+hexSum(text[len(start):])+lineEnd+"\n"...)
	if _, err := f.WriteAt(text, size); err != nil {
		return err
	}
	return f.Sync()
}

// end returns the text that must come before the next line of a log, and the prev
// of that line.
func end(f io.ReaderAt, size int64) (start, prev string, err error) {
	tail := make([]byte, min(size, int64(chained)+1))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return "", "", err
	}
	whole := bytes.HasSuffix(tail, []byte("\n"))
	if _, _, hash, ok := split(bytes.TrimSuffix(tail, []byte("\n"))); whole && ok {
		return "", hash, nil
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return "", "", err
	}
	if size > 0 && !whole {
		start = "\n"
		sum.Write([]byte(start))
	}
	return start, hex.EncodeToString(sum.Sum(nil)), nil
}

// split returns the hashed text of a line and its two members. It reports false if
// the line has no such members.
func split(line []byte) (text []byte, prev, hash string, ok bool) {
	at := len(line) - chained
	if at < 0 {
		return nil, "", "", false
	}
	members := string(line[at:])
	prev, hash = members[len(prevMember):len(prevMember)+digits], members[chained-len(lineEnd)-digits:chained-len(lineEnd)]
	if members != prevMember+prev+`"`+hashMember+hash+lineEnd || !isSum(prev) || !isSum(hash) {
		return nil, "", "", false
	}
	return line[:len(line)-len(hashMember)-digits-len(lineEnd)], prev, hash, true
}

func isSum(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size && hex.EncodeToString(sum) == text
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Report says what Verify found in a log.
type Report struct {
	// Lines counts all lines. Older of them come before the first line with a hash,
	// and have none. Torn of them were cut short by a crash.
	Lines, Older, Torn int
	// Last is the hash of the last line that has one, or "".
	Last string
	// Fault is the first line that does not continue the chain, or 0. Found says why.
	Fault int
	Found string
	// Cut: the last line was cut short, and no later line covers the bytes before it.
	Cut bool
	// Contains: the hash that Verify was asked for is in the log.
	Contains bool
}

// Verify reads a log up to the first line that does not continue the chain. It also
// looks for a hash, which may be "".
func Verify(r io.Reader, hash string) (Report, error) {
	var report Report
	lines, sum := bufio.NewReader(r), sha256.New()
	bare := 0 // the first of the lines without a hash since the last one with a hash
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return report, err
		}
		if len(line) == 0 {
			report.Cut = bare > 0 && bare == report.Lines
			return report, nil
		}
		report.Lines++
		text, prev, own, ok := split(bytes.TrimSuffix(line, []byte("\n")))
		switch {
		case !ok && report.Last == "":
			report.Older++
		case !ok && json.Valid(line):
			report.Fault, report.Found = report.Lines, "it has no hash: it was inserted or changed, or a program that writes no hashes wrote it"
		case !ok:
			report.Torn++
			bare = max(bare, report.Lines)
		case hexSum(text) != own:
			report.Fault, report.Found = report.Lines, "its content does not match its hash: it was changed"
		case report.Last != "" && bare == 0 && prev != report.Last:
			report.Fault, report.Found = report.Lines, "it does not continue the line before: lines were removed or inserted before it"
		case (report.Last == "" || bare > 0) && prev != hex.EncodeToString(sum.Sum(nil)):
			report.Fault, report.Found = report.Lines, "it does not continue the lines before, of which the last have no hash: they were changed, removed or inserted"
			if report.Lines == 1 {
				report.Found = "it does not start the log: lines were removed before it"
			}
			if bare > 0 {
				report.Fault = bare
			}
		default:
			report.Last, bare = own, 0
			report.Contains = report.Contains || own == hash
		}
		if report.Fault > 0 {
			return report, nil
		}
		sum.Write(line)
	}
}

// String describes a log without faults.
func (r Report) String() string {
	text := fmt.Sprintf("%d lines, %d with a hash", r.Lines, r.Lines-r.Older-r.Torn)
	if r.Older > 0 {
		text += fmt.Sprintf(", %d older lines without", r.Older)
	}
	if r.Torn > 0 {
		text += fmt.Sprintf(", %d cut short by a crash", r.Torn)
	}
	if r.Last != "" {
		text += ", last hash " + r.Last
	}
	return text
}
