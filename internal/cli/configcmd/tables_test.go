package configcmd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/test/programtest"
)

func TestLintAndExplainDescribeTables(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), programtest.JoinsConfig)
	for verb, wants := range map[string][]string{
		"lint": {"tables.people.missing", "a record without a row is lost", "tables.unused", "no expression uses it"},
		"explain": {
			"before table people (people) is read up to its present end", "it is dropped, counted, and lost", "it is parked, with the reason row-missing",
			"former rows are kept for 2h (history)", "a row of table prices in another partition than its record is missing", "joined with the newest row of table people",
			"table people is read again from the start of its topic before the first record is decided; its rows are in memory, and each takes its key, its value and about 120 bytes the topic of table people",
			"table prices is read again from the start of its topic before the first record is decided; its rows are in memory, and each takes its key, its value and about 120 bytes, and the same for each former row of the last 2h",
		},
	} {
		got := programtest.Run(t, "", verb, file)
		for _, want := range wants {
			if !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), want) {
				t.Errorf("%s lacks %q: %s", verb, want, got.Stdout)
			}
		}
	}
}
