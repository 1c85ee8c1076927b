package main

import (
	"slices"
	"testing"

	"github.com/semel-dev/semel/bench/internal/suite"
)

func TestChooseSelectsBenchmarksByNameAndRefusesUnknownOnes(t *testing.T) {
	t.Parallel()
	table := []suite.Benchmark{{Name: "a"}, {Name: "b"}, {Name: "kafka-1"}, {Name: "kafka-2"}}
	for _, c := range []struct{ names, want []string }{
		{[]string{"all"}, []string{"a", "b", "kafka-1", "kafka-2"}},
		{[]string{"b", "a"}, []string{"b", "a"}},
		{[]string{"kafka-*"}, []string{"kafka-1", "kafka-2"}},
		{[]string{"a", "c"}, nil},
		{[]string{"c*"}, nil},
		{[]string{"["}, nil},
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
