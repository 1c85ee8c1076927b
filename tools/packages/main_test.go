package main

import (
	"path"
	"slices"
	"testing"
)

func TestTheRaceDetectorRunsWhereCodeStartsGoroutines(t *testing.T) {
	t.Chdir("../..")
	race, err := choose(true)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := choose(false)
	if err != nil {
		t.Fatal(err)
	}
	for dir, wanted := range map[string][]string{
		"":               race, // its lease loop
		"store/pgstore":  race,
		"filter":         plain,
		"internal/cli":   plain, // verbs
		"test/kafka":     plain, // whole programs
		"tools/packages": plain,
	} {
		if name := path.Join("github.com/semel-dev/semel", dir); !slices.Contains(wanted, name) {
			t.Errorf("%s is in the other list", name)
		}
	}
}
