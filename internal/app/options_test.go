package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/stream"
)

// buildingOf reads a configuration with one pipeline to open.
func buildingOf(t *testing.T, text string) *building {
	t.Helper()
	f, err := kind.All().Parse(filepath.Join(t.TempDir(), "semel.yaml"), []byte(text), func(string) string { return "" })
	if err != nil {
		t.Fatalf("%s:\n%v", text, err)
	}
	return &building{file: f, spec: f.Pipelines[0]}
}

// stopping is a pipeline that stops at a message.
type stopping struct {
	config.Runnable
	reason pipeline.Reason
}

func (s stopping) Run(context.Context) error {
	return fmt.Errorf("pipeline p: %w", &pipeline.StoppedError{Where: "a message of in, key k", Reason: s.reason, Err: errors.New("never")})
}

func TestAPipelineThatStopsNamesTheSettingThatParks(t *testing.T) {
	t.Parallel()
	settings := map[pipeline.Reason]string{pipeline.ReasonLate: "on_late: park", pipeline.ReasonMismatch: "on_mismatch: park", pipeline.ReasonKeyMissing: "on_missing: park", pipeline.ReasonKeyInvalid: "on_missing: park", pipeline.ReasonUnreadable: "on_missing: park"}
	for _, reason := range pipeline.Reasons() {
		want := "fix the cause and start again, or write " + cmp.Or(settings[reason], "then: park")
		err := (&Pipeline{stopping{reason: reason}, &config.File{}, &config.Pipeline{}}).Run(t.Context())
		if !errors.Is(err, pipeline.ErrStopped) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", reason, err, want)
		}
	}
	for want, p := range map[string]*config.Pipeline{
		"or write aggregate.late: park": {Aggregate: &stream.Aggregate{}},
		"or write key.keep.late: park":  {Key: config.Key{Keep: &stream.Keep{Last: stream.Tumbling(time.Minute)}}},
		"or write on_late: park":        {Key: config.Key{Keep: &stream.Keep{Newest: &key.Rule{}}}},
	} {
		if err := (&Pipeline{stopping{reason: pipeline.ReasonLate}, &config.File{}, p}).Run(t.Context()); !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestConfiguredLimitsReachThePipeline(t *testing.T) {
	t.Parallel()
	b := buildingOf(t, `
stores: { keys: { memory: {} } }
pipelines:
  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { stdout: {} }, parallel: 3, batch: 10, in_flight: { max: 100, bytes: 4MiB } }
`)
	o := b.file.Options(b.spec, nil)
	if o.Workers != 3 || o.Batch != 10 || o.MaxItems != 100 || o.MaxBytes != 4<<20 {
		t.Errorf("%+v", o)
	}
}

// tidy is a store whose clean-up deletes seven keys.
type tidy struct{ semel.Store }

func (*tidy) Maintain(_ context.Context, opts *pgstore.MaintainOptions) error {
	opts.OnPass(7, nil)
	return nil
}

func TestConfiguredCleanUpReachesTheStore(t *testing.T) {
	t.Parallel()
	f := buildingOf(t, `
stores:
  top: { memory: {} }
  db: { postgres: { dsn: "host=h" } }
  both: { tiered: [top, db] }
pipelines:
  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: both, sink: { stdout: {} } }
`).file
	for _, name := range []string{"db", "both"} {
		store, gone := &tidy{}, int64(0)
		if err := Maintain(f, name, store)(t.Context(), func(n int64, _ error) { gone = n }); err != nil || gone != 7 {
			t.Errorf("%s: %v, %d gone", name, err, gone)
		}
	}
}
