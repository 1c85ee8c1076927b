package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// migration is one slot of a cluster that moves from one node to another.
type migration struct {
	*outage
	cluster  *services.RedisCluster
	from, to *services.Server
	ids      map[*services.Server]string
	slot     string
}

func newMigration(t *testing.T) *migration {
	t.Helper()
	cluster := servicestest.StartRedisCluster(t, nil)
	client := connect(t, "redis://"+strings.Join(cluster.Addrs(), ","), nil)
	store, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &migration{outage: &outage{t: t, client: client, store: store}, cluster: cluster, ids: map[*services.Server]string{}}
	for _, node := range cluster.Nodes {
		m.ids[node] = do(t, node.Addr(), "CLUSTER", "MYID").(string)
	}
	return m
}

// choose selects the slot of a key for the migration to the next node.
func (m *migration) choose(key semel.Key) {
	m.t.Helper()
	memo := m.store.digests()
	digest := memo.Key(key)
	slot := do(m.t, m.cluster.Addrs()[0], "CLUSTER", "KEYSLOT", m.store.recordKey(&digest)).(int64)
	m.slot = strconv.FormatInt(slot, 10)
	for i, node := range m.cluster.Nodes {
		for _, held := range do(m.t, node.Addr(), "CLUSTER", "SHARDS").([]any) {
			if owns(held, m.ids[node], slot) {
				m.from, m.to = node, m.cluster.Nodes[(i+1)%len(m.cluster.Nodes)]
			}
		}
	}
	if m.from == nil {
		m.t.Fatalf("no node has the slot %d", slot)
	}
}

// owns reads one shard of CLUSTER SHARDS: "slots", ranges, "nodes", nodes.
func owns(shard any, id string, slot int64) bool {
	parts := shard.([]any)
	if !strings.Contains(fmt.Sprint(parts[3]), id) {
		return false
	}
	ranges := parts[1].([]any)
	for i := 0; i+1 < len(ranges); i += 2 {
		if ranges[i].(int64) <= slot && slot <= ranges[i+1].(int64) {
			return true
		}
	}
	return false
}

// begin announces the migration.
func (m *migration) begin() {
	m.t.Helper()
	do(m.t, m.to.Addr(), "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.ids[m.from])
	do(m.t, m.from.Addr(), "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.ids[m.to])
}

// names returns the names in the slot on the old node.
func (m *migration) names() []string {
	m.t.Helper()
	var names []string
	for _, name := range do(m.t, m.from.Addr(), "CLUSTER", "GETKEYSINSLOT", m.slot, "1000").([]any) {
		names = append(names, name.(string))
	}
	return names
}

// move moves names to the new node.
func (m *migration) move(names ...string) {
	m.t.Helper()
	host, port, _ := net.SplitHostPort(m.to.Addr())
	do(m.t, m.from.Addr(), append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, names...)...)
}

// end gives the slot to the new node.
func (m *migration) end() {
	m.t.Helper()
	for _, node := range []*services.Server{m.to, m.from} {
		do(m.t, node.Addr(), "CLUSTER", "SETSLOT", m.slot, "NODE", m.ids[m.to])
	}
}

func TestMovedSlotIsFollowed(t *testing.T) {
	t.Parallel()
	m := newMigration(t)
	held := request(m.key())
	token := m.claim(held, semel.Fresh).Claim.Token
	m.choose(held.Key)
	m.begin()
	m.move(m.names()...)
	m.end()
	if err := finish(t.Context(), m.store, held.Key, token); err != nil {
		t.Errorf("complete on the new node: %v", err)
	}
	if n := errorsOf(t, m.from.Addr(), "MOVED"); n == 0 {
		t.Error("the old node has not answered MOVED: the fault did not happen")
	}
	m.claim(request(held.Key), semel.Duplicate)
}

func TestSlotThatMovesIsFollowedOrUnavailable(t *testing.T) {
	t.Parallel()
	m := newMigration(t)
	held := request(m.key())
	token := m.claim(held, semel.Fresh).Claim.Token
	m.choose(held.Key)
	m.begin()
	names := m.names()
	if len(names) < 2 {
		t.Fatalf("in the slot is only %q", names)
	}
	m.claim(request(held.Key), semel.InFlight)

	// The names of the script are on both nodes, so neither can run it.
	m.move(names[0])
	err := finish(t.Context(), m.store, held.Key, token)
	if !errors.Is(err, semel.ErrStoreUnavailable) || semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("complete between two nodes: %v; want unavailable", err)
	}
	if n := errorsOf(t, m.from.Addr(), "TRYAGAIN"); n == 0 {
		t.Error("the old node has not answered TRYAGAIN: the fault did not happen")
	}

	// All names are on the new node, and the old node still owns the slot.
	m.move(names[1:]...)
	if err := finish(t.Context(), m.store, held.Key, token); err != nil {
		t.Errorf("complete on the new node: %v", err)
	}
	m.claim(request(held.Key), semel.Duplicate)
	if n := errorsOf(t, m.from.Addr(), "ASK"); n == 0 {
		t.Error("the old node has not answered ASK: the fault did not happen")
	}
	m.end()
	m.claim(request(held.Key), semel.Duplicate)
}

// TestClusterSlotsMoveUnderLoad moves slots that are in use, all from one node to
// another. A node that gives and takes slots at the same time may lose its
// claim to a slot in the gossip, and then no node has the slot.
func TestClusterSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	m := newMigration(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newWork(t, m.store, 1000)
	end := w.start(ctx, w.again)
	w.waitFor(ctx, 50)
	for i := 0; i < len(w.keys); i += 10 {
		if m.choose(w.keys[i]); m.from != m.cluster.Nodes[0] {
			continue
		}
		m.begin()
		for names := m.names(); len(names) > 0; names = m.names() {
			m.move(names[0])
		}
		m.end()
	}
	end()
	redirected := 0
	for _, node := range m.cluster.Nodes {
		redirected += errorsOf(t, node.Addr(), "MOVED") + errorsOf(t, node.Addr(), "ASK")
	}
	if redirected == 0 {
		t.Error("no node has redirected: the fault did not happen")
	}
	if second := w.check(); second != 0 {
		t.Errorf("%d effects happened twice, though nothing was lost", second)
	}
}

func TestClusterWithADeadMasterRefusesAndRecovers(t *testing.T) {
	t.Parallel()
	cluster := servicestest.StartRedisCluster(t, nil)
	client := connect(t, "redis://"+strings.Join(cluster.Addrs(), ","), nil)
	store, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newWork(t, store, 1000)
	end := w.start(ctx, w.again)
	w.waitFor(ctx, 100)
	if err := cluster.Nodes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		return strings.Contains(do(t, cluster.Addrs()[0], "CLUSTER", "INFO").(string), "cluster_state:fail")
	}, "the others miss the master")
	var refused error
	eventually(t, func() bool {
		var answer semel.ClaimAnswer
		answer, refused = askFor(ctx, store, request(semel.Key{Scope: "down", ID: strconv.FormatUint(nonce.Add(1), 10)}))
		if refused == nil && answer.Decision != semel.Fresh {
			t.Fatalf("a new key is %v", answer.Decision)
		}
		return containsCode(refused, "CLUSTERDOWN")
	}, "the cluster refuses with CLUSTERDOWN")
	if semel.Classify(refused) != semel.ClassRetryable {
		t.Errorf("%v of class %v; want it retryable", refused, semel.Classify(refused))
	}
	if err := cluster.Nodes[1].Restart(ctx); err != nil {
		t.Fatal(err)
	}
	end()
	w.wantFailures()
	if second := w.check(); second != 0 {
		t.Errorf("%d effects happened twice, though a killed process forgets nothing", second)
	}
}
