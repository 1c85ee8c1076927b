package dedup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Counts counts lines by outcome. Read = Fresh + Duplicate + Rejected. Mismatch
// and Missing count lines among these.
type Counts struct {
	Read      int64 `json:"read"`
	Fresh     int64 `json:"fresh"`
	Duplicate int64 `json:"duplicate"`
	Mismatch  int64 `json:"mismatch"`
	Missing   int64 `json:"missing"`
	Rejected  int64 `json:"rejected"`
	Blank     int64 `json:"blank"`
	// BytesIn counts decompressed bytes. BytesOut counts bytes written to the
	// output, before compression.
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
}

// Report is the result of a run. The report of a resumed run counts from the
// start of the first attempt.
type Report struct {
	Counts
	// Skipped counts lines that were not read, because an earlier run read them.
	Skipped        int64   `json:"skipped,omitempty"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`
	Resumed        bool    `json:"resumed"`
}

// write writes the report to path. It replaces a regular file atomically, also
// behind symbolic links, so a reader sees either the old or the new report.
func (r Report) write(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("dedup: report: %w", err)
	}
	data = append(data, '\n')
	if info, statErr := os.Stat(path); statErr == nil && (!info.Mode().IsRegular() || isStream(path)) {
		err = appendTo(path, data)
	} else {
		err = replaceFile(path, data, info)
	}
	if err != nil {
		return fmt.Errorf("report %s: %s", path, reason(err))
	}
	return nil
}

// isStream reports whether path names an open stream, as /dev/stderr does. The
// stream may be a regular file, which must not be replaced while it is open.
func isStream(path string) bool {
	path, err := filepath.Abs(path)
	device := strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/") // which has files
	return err == nil && (device || strings.HasPrefix(path, "/proc/"))
}

// appendTo writes to a device, a pipe or a stream. It blocks while a named pipe
// has no reader.
func appendTo(path string, data []byte) error {
	switch filepath.Clean(path) { // opening a file again would write from another position
	case "/dev/stdout":
		_, err := os.Stdout.Write(data)
		return err
	case "/dev/stderr":
		_, err := os.Stderr.Write(data)
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// replaceFile replaces path by a new file with the permissions of the old one.
// info is nil if there is no old file.
func replaceFile(path string, data []byte, info fs.FileInfo) error {
	path, err := canonicalPath(path)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // has no effect after the rename
	_, err = file.Write(data)
	mode := fs.FileMode(0o644)
	if info != nil {
		mode = info.Mode().Perm()
	}
	if err == nil {
		err = file.Chmod(mode)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	return err
}
