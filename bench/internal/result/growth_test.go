package result

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestGrowthAndCostsAreLoadedAsTheyWereSaved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	how := Measured{Work: "claims", Command: "run it", Date: "2026-01-02T03:04:05Z", Machine: "a machine"}
	g := Growth{Store: "embedded", Keys: 1_000_000, Rate: 9, P99: 1, Memory: 2, Disk: 3, Restart: 4, Restore: 5, Measured: how}
	c := Cost{Scenario: "windows", Messages: 10, Ours: Spent{CPU: 1, Memory: 2}, Peer: &Spent{CPU: 3}, PeerVersion: "peer", Measured: how}
	if err := g.Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := c.Save(dir); err != nil {
		t.Fatal(err)
	}
	grown, err := LoadGrowth(dir)
	if err != nil || len(grown) != 1 || grown[0] != g {
		t.Errorf("%+v, %v, want %+v", grown, err, g)
	}
	costs, err := LoadCosts(dir)
	if err != nil || len(costs) != 1 || !reflect.DeepEqual(costs[0], c) {
		t.Errorf("%+v, %v, want %+v", costs, err, c)
	}
	if results, err := LoadAll(dir); err != nil || len(results) != 0 {
		t.Errorf("growth and costs are loaded as results: %v, %v", results, err)
	}
}

func TestFiguresThatWereNotMeasuredAreNotSaved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := (&Growth{Store: "embedded", Keys: 1, Rate: 9, P99: 1, Memory: 2, Disk: 3, Restart: 4}).Save(dir); err == nil {
		t.Error("growth without a cold start was saved")
	}
	if err := (&Cost{Scenario: "windows", Messages: 10, Ours: Spent{CPU: 1}}).Save(dir); err == nil {
		t.Error("a cost without memory was saved")
	}
}

func TestGrowthOfAnotherNameIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := Growth{Store: "embedded", Keys: 10, Rate: 9, P99: 1, Memory: 2, Disk: 3, Restart: 4, Restore: 5}
	if err := g.Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, GrowthDir, "embedded-10.json"), filepath.Join(dir, GrowthDir, "embedded-20.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadGrowth(dir); err == nil || !strings.Contains(err.Error(), "does not belong into embedded-20.json") {
		t.Error(err)
	}
}
