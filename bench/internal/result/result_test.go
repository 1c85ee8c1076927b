package result

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func sample() Result {
	return Result{
		Name: "store-claim", Work: "claims", Unit: "claims/s", PeerVersion: "peer v1", Command: "run it",
		Rounds: [][2]float64{{9, 3}, {7, 2}, {8, 4}, {50, 1}, {1, 50}},
		Target: 2, Date: "2026-01-02T03:04:05Z", Machine: "a machine",
	}
}

func TestRatioUsesMediansAndTheDirectionOfTheUnit(t *testing.T) {
	t.Parallel()
	more := sample()
	more.Settle(false)
	if more.Ours != 8 || more.Peer != 3 || more.Ratio != 8.0/3 || !more.Met() {
		t.Errorf("more is better: %+v", more)
	}
	less := sample()
	less.Settle(true)
	if less.Ratio != 3.0/8 || less.Met() {
		t.Errorf("less is better: %+v", less)
	}
}

func TestSavedResultHasExactlyTheDocumentedMembers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := sample()
	r.Settle(false)
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "store-claim.json"))
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		t.Fatal(err)
	}
	want := strings.Fields("name work unit ours peer peer_version rounds ratio target command date machine")
	var got []string
	for name := range members {
		got = append(got, name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("members %v, want %v", got, want)
	}
	all, err := LoadAll(dir)
	if err != nil || len(all) != 1 || !reflect.DeepEqual(all[0], r) {
		t.Errorf("loaded %+v, %v; want %+v", all, err, r)
	}
}

func TestLoadRefusesFilesThatNoBenchmarkWrote(t *testing.T) {
	t.Parallel()
	good := sample()
	good.Settle(false)
	text := func(change func(*Result)) string {
		r := good
		change(&r)
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for name, content := range map[string]string{
		"edited median": text(func(r *Result) { r.Ours++ }),
		"edited ratio":  text(func(r *Result) { r.Ratio++ }),
		"no rounds":     text(func(r *Result) { r.Rounds = nil }),
		"zero round":    text(func(r *Result) { r.Rounds = [][2]float64{{0, 1}} }),
		"other name":    text(func(r *Result) { r.Name = "other" }),
		"more members":  `{"extra":1}`,
		"more values":   text(func(*Result) {}) + "{}",
		"not JSON":      "ours: 1",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "store-claim.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadAll(dir); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
}
