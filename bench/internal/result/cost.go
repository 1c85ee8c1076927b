package result

import (
	"fmt"
	"path/filepath"
)

// Cost is what the messages of a scenario take.
type Cost struct {
	// Scenario is a name of semel init.
	Scenario string `json:"scenario"`
	// Messages is how many were measured. The figures are for a million.
	Messages int   `json:"messages"`
	Ours     Spent `json:"ours"`
	// Peer handles the same messages without keys. It is nil if there is no such program.
	Peer        *Spent `json:"peer,omitempty"`
	PeerVersion string `json:"peer_version,omitempty"`
	Measured
}

// Spent is what a million messages take, and the memory that they take at the peak.
type Spent struct {
	// CPU is the processor time of the program in seconds, and Servers that of all servers.
	CPU     float64 `json:"cpu_s"`
	Servers float64 `json:"servers_cpu_s"`
	// Network is what was sent between program and servers, and Disk what was written, in MiB.
	Network float64 `json:"network_mib"`
	Disk    float64 `json:"disk_mib"`
	// Memory is the peak of resident memory of the program, in MiB.
	Memory float64 `json:"memory_mib"`
}

// CostDir is the directory of costs below that of the results.
const CostDir = "cost"

// Name is the file's name without ".json".
func (c *Cost) Name() string { return c.Scenario }

// Save writes the file below the directory of the results.
func (c *Cost) Save(results string) error {
	if c.Messages <= 0 || !(c.Ours.CPU > 0 && c.Ours.Memory > 0) {
		return fmt.Errorf("result: save %s: a figure is not above 0: %+v", c.Scenario, *c)
	}
	return saveFile(filepath.Join(results, CostDir), c.Name(), c)
}

// LoadCosts reads all costs, in the order of the scenarios' names.
func LoadCosts(results string) ([]Cost, error) {
	return loadFiles(filepath.Join(results, CostDir), (*Cost).Name)
}
