package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

type readier interface {
	Ready(ctx context.Context) error
}

func TestReadyReportsAnUnreachableServer(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	ready, ok := semel.As[readier](semel.Join(o.store, 0))
	if !ok {
		t.Fatal("a joined store does not say whether it is ready")
	}
	if err := ready.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.server.Kill(); err != nil {
		t.Fatal(err)
	}
	// The first call may find that an open connection was closed.
	eventually(t, func() bool {
		err := ready.Ready(t.Context())
		if !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Fatalf("without the server: %v", err)
		}
		return strings.Contains(err.Error(), o.server.Addr())
	}, "the error names the server")
	if err := o.server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return ready.Ready(t.Context()) == nil }, "the store is ready again")
	o.client.Close()
	if err := ready.Ready(t.Context()); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("after its client was closed: %v", err)
	}
}

func TestReadyReportsAnIncompleteCluster(t *testing.T) {
	t.Parallel()
	cluster := servicestest.StartRedisCluster(t, nil)
	client := connect(t, "redis://"+strings.Join(cluster.Addrs(), ","), nil)
	store, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return store.Ready(t.Context()) == nil }, "the cluster is whole")
	if err := cluster.Nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		err := store.Ready(t.Context())
		return errors.Is(err, semel.ErrStoreUnavailable) && strings.Contains(err.Error(), "cluster_state is fail")
	}, "the others miss the master")
	if err := cluster.Nodes[1].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return store.Ready(t.Context()) == nil }, "the cluster is whole again")
}

func TestClusterWithUnassignedSlotsIsIncomplete(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state, given, failed string
		whole                bool
	}{
		{"ok", "16384", "0", true},
		{"ok", "16384", "5461", false},
		{"ok", "10923", "0", false},
		{"fail", "16384", "0", false},
		{"", "", "", false},
	} {
		err := served(map[string]string{"cluster_state": c.state, "cluster_slots_assigned": c.given, "cluster_slots_fail": c.failed})
		if c.whole && err != nil || !c.whole && !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
