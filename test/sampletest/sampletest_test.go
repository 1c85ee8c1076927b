package sampletest_test

import (
	"testing"

	"github.com/semel-dev/semel/test/sampletest"
)

func TestShortRunSamplesTheTable(t *testing.T) {
	t.Parallel()
	all := map[string]int{"a": 1, "b": 2, "c": 3}
	want := len(all)
	if testing.Short() {
		want = 2
	}
	some := sampletest.Sampled(all, 2)
	for name, value := range some {
		if all[name] != value {
			t.Errorf("%s is %d", name, value)
		}
	}
	if len(some) != want {
		t.Errorf("%v are drawn, want %d", some, want)
	}
	if one := sampletest.OneOf(1, 2, 3); testing.Short() != (len(one) == 1) {
		t.Errorf("%v are drawn", one)
	}
}
