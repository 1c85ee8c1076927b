package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/connector/connectortest"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/storetest"
)

func TestKinds(t *testing.T) {
	connectortest.Run(t, kinds(), map[string][]string{"source.spool": {"{ dir: spool }"}, "store.shelf": {"{}"}})
}

func TestShelf(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New: func(_ testing.TB, now func() time.Time) func() (semel.Store, error) {
			return func() (semel.Store, error) { return open(1_000_000, now), nil }
		},
	})
}

func TestSpool(t *testing.T) {
	brokertest.RunSource(t, brokertest.SourceHarness{New: newPlace, Alone: true, NoHeaders: true})
}

// newPlace makes an empty spool.
func newPlace(tb testing.TB) brokertest.SourcePlace {
	dir, drafts, written := tb.TempDir(), tb.TempDir(), 0
	return brokertest.SourcePlace{
		Produce: func(_ context.Context, list []brokertest.Numbered) error {
			for _, m := range list {
				draft := filepath.Join(drafts, "draft")
				if err := os.WriteFile(draft, m.Body, 0o600); err != nil {
					return err
				}
				if err := os.Rename(draft, filepath.Join(dir, fmt.Sprintf("%09d.json", written))); err != nil {
					return err
				}
				written++
			}
			return nil
		},
		Open: func(ctx context.Context) (pipeline.Source, error) {
			return (&spool{dir: connector.Path(dir), watch: true}).Open(ctx, &connector.Env{})
		},
	}
}
