//go:build !linux

package dedup

import (
	"os"
	"time"
)

// factsOf returns no facts: the content of a file decides whether it is unchanged.
func factsOf(os.FileInfo, time.Time) facts { return facts{} }
