package wiring

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/store/pgstore"
)

// buildingOf reads a configuration with one pipeline that is to be opened.
func buildingOf(t *testing.T, text string) *building {
	t.Helper()
	f, err := kind.All().Parse(filepath.Join(t.TempDir(), "semel.yaml"), []byte(text), func(string) string { return "" })
	if err != nil {
		t.Fatalf("%s:\n%v", text, err)
	}
	return &building{file: f, spec: f.Pipelines[0]}
}

func TestBoundsReachThePipeline(t *testing.T) {
	t.Parallel()
	b := buildingOf(t, `
stores: { keys: { memory: {} } }
pipelines:
  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { stdout: {} }, parallel: 3, batch: { max: 10, bytes: 1MiB }, in_flight: { max: 100, bytes: 4MiB } }
`)
	o := b.file.Options(b.spec, nil)
	if o.Workers != 3 || o.Batch != 10 || o.BatchBytes != 1<<20 || o.MaxItems != 100 || o.MaxBytes != 4<<20 {
		t.Errorf("%+v", o)
	}
}

// tidy is a store that notes how it is to be cleaned up.
type tidy struct {
	semel.Store
	told *pgstore.MaintainOptions
}

func (s *tidy) Maintain(_ context.Context, opts *pgstore.MaintainOptions) error {
	s.told = opts
	opts.OnPass(7, nil)
	return nil
}

func TestLimitsOfCleanUpReachTheStore(t *testing.T) {
	t.Parallel()
	f := buildingOf(t, `
stores:
  top: { memory: {} }
  db: { postgres: { dsn: "host=h", cleanup_rate: 5000, cleanup_hours: "22:00-06:00" } }
  both: { tiered: [top, db] }
pipelines:
  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: both, sink: { stdout: {} } }
`).file
	for _, name := range []string{"db", "both"} {
		store, gone := &tidy{}, int64(0)
		if err := Maintain(f, name, store)(t.Context(), func(n int64, _ error) { gone = n }); err != nil || gone != 7 {
			t.Errorf("%s: %v, %d gone", name, err, gone)
		}
		if store.told.Rate != 5000 || store.told.Hours != (pgstore.Hours{From: 22, To: 6}) {
			t.Errorf("%s: %+v", name, store.told)
		}
	}
}
