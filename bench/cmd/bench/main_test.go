package main

import (
	"slices"
	"testing"

	"github.com/semel-dev/semel/bench/internal/suite"
)

func TestChooseTakesNamesInTheirOrderAndRefusesOthers(t *testing.T) {
	t.Parallel()
	table := []suite.Benchmark{{Name: "a"}, {Name: "b"}}
	for _, c := range []struct{ names, want []string }{
		{[]string{"all"}, []string{"a", "b"}},
		{[]string{"b", "a"}, []string{"b", "a"}},
		{[]string{"a", "c"}, nil},
		{nil, nil},
	} {
		chosen, err := choose(table, c.names)
		var got []string
		for _, b := range chosen {
			got = append(got, b.Name)
		}
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("choose %v: %v, %v; want %v", c.names, got, err, c.want)
		}
	}
}
