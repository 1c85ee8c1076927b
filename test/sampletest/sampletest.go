// Package sampletest draws the cases that a test runs with -short. Each run draws others.
package sampletest

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// Sampled returns all entries. With -short it returns n of them, others from run to run.
func Sampled[V any](all map[string]V, n int) map[string]V {
	if !testing.Short() {
		return all
	}
	names := slices.Collect(maps.Keys(all))
	some := make(map[string]V)
	for _, i := range rand.Perm(len(names))[:n] {
		some[names[i]] = all[names[i]]
	}
	return some
}

// OneOf returns all values. With -short it returns one of them, another from run to run.
func OneOf[V any](all ...V) []V {
	if !testing.Short() {
		return all
	}
	i := rand.IntN(len(all))
	return all[i : i+1]
}
