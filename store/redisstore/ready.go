package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
)

// Ready returns nil if the server answers. For a cluster it returns nil if a
// node says that every slot is served. Otherwise the error says why. Ready
// blocks for one round trip, in a cluster for one to each node until one
// answers, and at most until ctx ends. It may be called at any time. Errors
// wrap ErrStoreUnavailable, ErrStoreFailed, ErrClosed or the error of ctx.
func (s *Store) Ready(ctx context.Context) error {
	err := s.enter(ctx, "ready", 0, 0)
	if err != nil {
		return err
	}
	if s.cluster {
		err = s.clusterReady(ctx)
	} else {
		err = s.client.Do(ctx, s.client.B().Ping().Build()).Error()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, semel.ErrClosed), errors.Is(err, semel.ErrStoreUnavailable):
		return fmt.Errorf("redisstore: ready: %w", err)
	}
	return fmt.Errorf("redisstore: ready: %w: %w", semel.ErrStoreUnavailable, err)
}

// clusterReady asks the nodes one after the other until one reports the state
// of the cluster.
func (s *Store) clusterReady(ctx context.Context) error {
	var failed []error
	nodes := s.client.Nodes()
	for _, addr := range slices.Sorted(maps.Keys(nodes)) {
		text, err := nodes[addr].Do(ctx, nodes[addr].B().ClusterInfo().Build()).ToString()
		if err == nil {
			return served(fields(strings.TrimPrefix(text, "txt:"))) // RESP3 prefixes the text
		}
		failed = append(failed, fmt.Errorf("%s: %w", addr, err))
	}
	return errors.Join(append(failed, errors.New("no node answered"))...)
}

// served returns an error unless every slot of a cluster is served.
func served(info map[string]string) error {
	if state, given, failed := info["cluster_state"], info["cluster_slots_assigned"], info["cluster_slots_fail"]; state != "ok" || given != "16384" || failed != "0" {
		return fmt.Errorf("cluster_state is %s: %s of 16384 slots are assigned and %s failed: %w", state, given, failed, semel.ErrStoreUnavailable)
	}
	return nil
}
