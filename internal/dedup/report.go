package dedup

import (
	"fmt"
	"strconv"
	"time"
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

// String is the summary for people, as in
// "read 5,000,000  fresh 4,000,000  duplicates 1,000,000  mismatched 12  rejected 0  in 1.9 s (2.6 M lines/s)".
func (r Report) String() string {
	return fmt.Sprintf("read %s  fresh %s  duplicates %s  mismatched %s  rejected %s  in %.1f s (%s)",
		Thousands(r.Read), Thousands(r.Fresh), Thousands(r.Duplicate), Thousands(r.Mismatch), Thousands(r.Rejected),
		r.ElapsedSeconds, Rate(r.Read, time.Duration(r.ElapsedSeconds*float64(time.Second))))
}

// Thousands writes a number with commas between groups of three digits.
func Thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(digits) - 3; i > first; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Rate writes lines in a time as "2.6 M lines/s".
func Rate(lines int64, in time.Duration) string {
	perSecond := 0.0
	if in > 0 {
		perSecond = float64(lines) / in.Seconds()
	}
	switch {
	case perSecond >= 1e6:
		return fmt.Sprintf("%.1f M lines/s", perSecond/1e6)
	case perSecond >= 1e3:
		return fmt.Sprintf("%.1f k lines/s", perSecond/1e3)
	}
	return fmt.Sprintf("%.0f lines/s", perSecond)
}
