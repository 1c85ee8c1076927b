// Package result stores the results of benchmarks: one file for each figure. The
// performance page and the tables are made from these files alone.
package result

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Result is one figure of Semel and the peer's figure.
type Result struct {
	// Name is the file's name without ".json".
	Name string `json:"name"`
	// Work describes the work of both sides.
	Work string `json:"work"`
	Unit string `json:"unit"`
	// Ours and Peer are the medians of Rounds.
	Ours float64 `json:"ours"`
	Peer float64 `json:"peer"`
	// PeerVersion names the peer and its version, or the limit that replaces a peer.
	PeerVersion string `json:"peer_version"`
	// PeerEnded is how often the peer's program ended by itself, so that its side of a
	// round was repeated.
	PeerEnded int `json:"peer_ended,omitempty"`
	// Rounds are the raw pairs [ours, peer] in the order of measurement.
	Rounds [][2]float64 `json:"rounds"`
	// Ratio is above 1 if ours is better, even for figures where less is better.
	Ratio float64 `json:"ratio"`
	// Target is the least acceptable Ratio; 0 is no target.
	Target  float64 `json:"target"`
	Command string  `json:"command"`
	// Date is RFC 3339, in UTC.
	Date    string `json:"date"`
	Machine string `json:"machine"`
}

// Settle fills Ours, Peer and Ratio from Rounds.
func (r *Result) Settle(lessIsBetter bool) {
	r.Ours, r.Peer = r.medians()
	r.Ratio = r.Ours / r.Peer
	if lessIsBetter {
		r.Ratio = r.Peer / r.Ours
	}
}

// Met reports whether the figure reaches its target.
func (r *Result) Met() bool { return r.Ratio >= r.Target }

// Check returns an error if the fields contradict each other, such as medians that are
// not those of the rounds.
func (r *Result) Check() error {
	if r.Name == "" || r.Unit == "" || r.Command == "" || len(r.Rounds) == 0 {
		return errors.New("name, unit, command and rounds are required")
	}
	for _, round := range r.Rounds {
		if !(round[0] > 0 && round[1] > 0) || math.IsInf(round[0]+round[1], 0) {
			return fmt.Errorf("the round %v is not a pair of figures above 0", round)
		}
	}
	if ours, peer := r.medians(); r.Ours != ours || r.Peer != peer {
		return fmt.Errorf("ours %v and peer %v are not the medians %v and %v of the rounds", r.Ours, r.Peer, ours, peer)
	}
	if r.Ratio != r.Ours/r.Peer && r.Ratio != r.Peer/r.Ours {
		return fmt.Errorf("the ratio %v is not that of the medians", r.Ratio)
	}
	return nil
}

func (r *Result) medians() (ours, peer float64) {
	a := make([]float64, len(r.Rounds))
	b := make([]float64, len(r.Rounds))
	for i, round := range r.Rounds {
		a[i], b[i] = round[0], round[1]
	}
	return median(a), median(b)
}

func median(s []float64) float64 {
	slices.Sort(s)
	middle := len(s) / 2
	if len(s)%2 == 1 {
		return s[middle]
	}
	return (s[middle-1] + s[middle]) / 2
}

// Save writes the result into dir.
func (r *Result) Save(dir string) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("result: save %q: %w", r.Name, err)
	}
	return saveFile(dir, r.Name, r)
}

// LoadAll reads all results in dir, in the order of their names.
func LoadAll(dir string) ([]Result, error) {
	results, err := loadFiles(dir, func(r *Result) string { return r.Name })
	if err != nil {
		return nil, err
	}
	for i := range results {
		if err := results[i].Check(); err != nil {
			return nil, fmt.Errorf("result: load %s: %w", results[i].Name, err)
		}
	}
	return results, nil
}
