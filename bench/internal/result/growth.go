package result

import (
	"fmt"
	"path/filepath"
)

// Measured says how something was measured. Each file has it.
type Measured struct {
	// Work describes the work.
	Work    string `json:"work"`
	Command string `json:"command"`
	// Date is RFC 3339, in UTC.
	Date    string `json:"date"`
	Machine string `json:"machine"`
}

// Growth is what a store does when it has a number of keys.
type Growth struct {
	Store string `json:"store"`
	Keys  int    `json:"keys"`
	// Rate is new keys a second, over the last tenth of the keys.
	Rate float64 `json:"rate"`
	// P99 is the time in milliseconds below which 99 of 100 single claims were answered.
	P99 float64 `json:"p99_ms"`
	// Memory is resident, and Disk is that of all keys.
	Memory float64 `json:"memory_mib"`
	Disk   float64 `json:"disk_mib"`
	// Restart is the time in seconds from a start after SIGKILL to the first answers, and
	// Restore the same from cold files or, for Kafka, from the brokers.
	Restart float64 `json:"restart_s"`
	Restore float64 `json:"restore_s"`
	Measured
}

// GrowthDir is the directory of growth below that of the results.
const GrowthDir = "growth"

// Name is the file's name without ".json".
func (g *Growth) Name() string { return fmt.Sprintf("%s-%d", g.Store, g.Keys) }

// Save writes the file below the directory of the results.
func (g *Growth) Save(results string) error {
	if !(g.Rate > 0 && g.P99 > 0 && g.Memory > 0 && g.Disk > 0 && g.Restart > 0 && g.Restore > 0) {
		return fmt.Errorf("result: save %s: a figure is not above 0: %+v", g.Name(), *g)
	}
	return saveFile(filepath.Join(results, GrowthDir), g.Name(), g)
}

// LoadGrowth reads all growth, in the order of the names of its files.
func LoadGrowth(results string) ([]Growth, error) {
	return loadFiles(filepath.Join(results, GrowthDir), (*Growth).Name)
}
