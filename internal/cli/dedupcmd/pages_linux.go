package dedupcmd

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// releasePages unmaps the pages of the program that were read so far. Most of them
// serve the initialisation of packages and are not read again, but would count as
// memory of the process. The others come back from the page cache when they are read.
func releasePages() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	var start, end uintptr // of a read-only segment of the program, or 0
	for line := range strings.Lines(string(smaps)) {
		switch {
		case line[0] < 'A' || line[0] > 'Z': // an address in lower case, not the name of a value
			var mode string
			_, err := fmt.Sscanf(line, "%x-%x %s", &start, &end, &mode)
			if err != nil || strings.Contains(mode, "w") || !strings.HasSuffix(line, " "+program+"\n") {
				start, end = 0, 0
			}
		// A page that differs from the file, such as by a relocation, would be lost.
		case start != 0 && strings.HasPrefix(line, "Anonymous:") && strings.HasSuffix(line, " 0 kB\n"):
			// If it fails, the pages stay mapped.
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, start, end-start, syscall.MADV_DONTNEED)
		}
	}
}
