package dedupcmd

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

func TestMemoryPagesOfTheProgramFileAreReleased(t *testing.T) {
	before := mappedFiles(t)
	releasePages()
	if after := mappedFiles(t); after >= before {
		t.Errorf("%d KiB of files are in memory, and %d KiB before", after, before)
	}
}

// mappedFiles returns how many KiB of files the process has in memory.
func mappedFiles(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, found := range regexp.MustCompile(`Rss(?:File|Shmem):\s+(\d+) kB`).FindAllSubmatch(status, -1) { // files in memory count as shared
		kib, err := strconv.Atoi(string(found[1]))
		if err != nil {
			t.Fatal(err)
		}
		sum += kib
	}
	if sum == 0 {
		t.Fatalf("no RssFile in\n%s", status)
	}
	return sum
}
