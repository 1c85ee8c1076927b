package main

import (
	"path"
	"slices"
	"strings"
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
		"":                      race, // its lease loop
		"store/pgstore":         race,
		"filter":                plain,
		"broker/kafka/kafkatxn": plain, // sampled
		"internal/cli":          plain, // verbs
		"test/kafka":            plain, // whole programs
		"tools/packages":        plain,
	} {
		if name := path.Join("github.com/semel-dev/semel", dir); !slices.Contains(wanted, name) {
			t.Errorf("%s is in the other list", name)
		}
	}
}

func TestASampleHasAnEighthOfTheTests(t *testing.T) {
	t.Chdir("../..")
	drawn, err := sample()
	if err != nil {
		t.Fatal(err)
	}
	var tests []string
	for _, p := range sampled {
		own, err := testsOf(strings.TrimPrefix(p, module))
		if err != nil {
			t.Fatal(err)
		}
		tests = append(tests, own...)
	}
	if eighth := len(tests) / 8; len(drawn) < eighth || len(drawn) > eighth+len(sampled) {
		t.Errorf("%d of %d tests are drawn", len(drawn), len(tests))
	}
	count := func(list []string, name string) int {
		return len(slices.DeleteFunc(slices.Clone(list), func(other string) bool { return other != name }))
	}
	for _, name := range drawn { // packages may have tests of one name
		if count(drawn, name) > count(tests, name) {
			t.Errorf("%s is drawn twice, or is no test", name)
		}
	}
}
