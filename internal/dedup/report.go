package dedup

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Counts is what became of the lines. Read = Fresh + Duplicate + Rejected;
// Mismatch and Missing say how many of them there are.
type Counts struct {
	Read      int64 `json:"read"`
	Fresh     int64 `json:"fresh"`
	Duplicate int64 `json:"duplicate"`
	Mismatch  int64 `json:"mismatch"`
	Missing   int64 `json:"missing"`
	Rejected  int64 `json:"rejected"`
	Blank     int64 `json:"blank"`
	// BytesIn counts decompressed bytes, BytesOut those written to the output.
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
}

// Report is the result of a run. Of one that was resumed it counts from the
// beginning of the first attempt.
type Report struct {
	Counts
	ElapsedSeconds float64 `json:"elapsed_seconds"`
	Resumed        bool    `json:"resumed"`
}

// write replaces the file by the report, at once: who reads it sees a whole
// one, the old or the new.
func (r Report) write(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("dedup: report: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("report %s: %s", path, reason(err))
	}
	defer os.Remove(file.Name()) // in vain once it is renamed
	_, err = file.Write(append(data, '\n'))
	if err == nil {
		err = file.Chmod(0o644)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("report %s: %s", path, reason(err))
	}
	return nil
}
