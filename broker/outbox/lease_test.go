package outbox

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestARepairWhoseAnswerWasLostIsTold adds the shards for a relay whose own request seems to have
// failed.
func TestARepairWhoseAnswerWasLostIsTold(t *testing.T) {
	t.Parallel()
	address := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"fsync": "off"}}).URL()
	pool := Migrated(t, address)
	h := &history{T: t, address: address, pool: pool, random: rand.New(rand.NewPCG(1, 1))}
	r := &modelRelay{}
	h.begin(r)
	t.Cleanup(r.source.pool.Close)
	var said []string
	r.source.opts.Observer = observer(func(e pipeline.Event) { said = append(said, e.Reason) })
	h.exec("TRUNCATE semel_outbox_shards")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.leases.repair(ended, shardCount); err == nil {
		t.Fatal("the request did not fail")
	}
	_, err := pool.Exec(t.Context(), r.source.sql.addShards, shardCount, int64(0))
	h.must(err)
	for range 2 { // it is reported once
		h.must(r.leases.tend(t.Context()))
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "64 of the 64 rows of ") {
		t.Errorf("it is told %q", said)
	}
}

// observer is an observer of pipelines.
type observer func(pipeline.Event)

func (observer) Observe(semel.Event)                {}
func (f observer) ObservePipeline(e pipeline.Event) { f(e) }
