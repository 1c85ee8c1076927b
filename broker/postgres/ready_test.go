package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestSessionsAreReadyIfTheirStoreIs kills the server of the keys while nothing
// is written.
func TestSessionsAreReadyIfTheirStoreIs(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	g := guard(t, open(t, server.URL()))
	same, err := postgres.NewSession(g, &row)
	if err != nil {
		t.Fatal(err)
	}
	sessions := map[string]semel.Readier{"same transaction": same}
	for name, opts := range map[string]*pipeline.TwoPhaseOptions{"two phases": nil, "passing": {Pass: true}} {
		sink, err := postgres.Open(t.Context(), servers.Database(t), &row)
		if err != nil {
			t.Fatal(err)
		}
		session, err := pipeline.NewTwoPhase(g.Store(), sink, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Close(context.Background()) })
		sessions[name] = session
	}
	for name, session := range sessions {
		if err := session.Ready(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	for name, session := range sessions {
		err := session.Ready(t.Context())
		if name == "passing" && err != nil || name != "passing" && (!errors.Is(err, semel.ErrStoreUnavailable) || !strings.HasPrefix(err.Error(), "store: ")) {
			t.Errorf("%s, without the server of the keys: %v", name, err)
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for name, session := range sessions {
		for err := session.Ready(t.Context()); err != nil; err = session.Ready(t.Context()) {
			select {
			case <-tick.C:
			case <-time.After(time.Minute): // only what hangs needs it
				t.Fatalf("%s, with the server back: %v", name, err)
			}
		}
	}
}
