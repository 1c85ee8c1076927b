// Package outside stands for a module that uses this one. It is compiled where
// the go command refuses internal packages.
package outside

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/connector/connectortest"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/vfs"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
			dir := tb.TempDir()
			return func() (semel.Store, error) { return openStore(vfs.OS{}, dir, now) }
		},
		Transact: transact,
	})
}

func TestStoreSurvivesCrashes(t *testing.T) {
	storetest.RunCrash(t, storetest.CrashHarness{Open: openStore, Transact: transact})
}

func TestCopyOfTheStoreIsWhole(t *testing.T) {
	storetest.RunCopies(t, storetest.CopyHarness{Transact: transact, Open: func(dir string, now func() time.Time) (semel.Store, error) {
		return openStore(vfs.OS{}, dir, now)
	}})
}

func BenchmarkStore(b *testing.B) {
	storetest.RunBenchmarks(b, storetest.Harness{New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
		return func() (semel.Store, error) { return openStore(vfs.OS{}, tb.TempDir(), now) }
	}})
}

func TestStoreReportsASilentServer(t *testing.T) {
	storetest.RunSilent(t, "127.0.0.1:1", time.Minute, func(t *testing.T, address string) semel.Store {
		store, err := openStore(vfs.OS{}, t.TempDir(), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		return store
	})
}

// openStore has the types of all that a store of another module needs.
func openStore(fs vfs.FS, dir string, now func() time.Time) (semel.Store, error) {
	return logstore.Open(dir, &logstore.Options{FS: fs, Clock: now, SegmentSize: 64 << 10})
}

func transact(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
	s := store.(*logstore.Store)
	tx, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Abort()
	for i, r := range reqs {
		var digester logstore.Digester = s.Digester(r.Key.Scope)
		keys := logstore.TxKeys{Digests: []semel.Digest{digester.String(r.Key.ID)}, Keys: []semel.Key{r.Key}, Origins: []string{r.Origin}}
		decision := make([]semel.Decision, 1)
		if err := tx.Claim(keys, r.Window, decision); err != nil {
			return err
		}
		answers[i].Decision = decision[0]
	}
	if !commit {
		return nil
	}
	return tx.Commit(ctx)
}

func TestSource(t *testing.T) {
	brokertest.RunSource(t, brokertest.SourceHarness{New: func(tb testing.TB) brokertest.SourcePlace {
		return brokertest.SourcePlace{
			Produce: func(context.Context, []brokertest.Numbered) error { return nil },
			Open: func(context.Context) (pipeline.Source, error) {
				return file.OpenSource([]string{tb.TempDir()}, &file.SourceOptions{FS: vfs.OS{}})
			},
		}
	}})
}

func TestSink(t *testing.T) {
	brokertest.RunSink(t, brokertest.SinkHarness{NoHeaders: true, New: func(tb testing.TB) brokertest.SinkTarget {
		return brokertest.SinkTarget{Sink: func(context.Context) (pipeline.Sink, error) {
			return file.OpenSink(tb.TempDir(), &file.SinkOptions{FS: vfs.OS{}})
		}}
	}})
}

func TestKinds(t *testing.T) { connectortest.Run(t, connector.Kinds{}, nil) }

func BenchmarkSource(b *testing.B) {
	brokertest.RunSourceBenchmarks(b, brokertest.SourceHarness{Patience: 2 * brokertest.Patience})
}

func BenchmarkSink(b *testing.B) { brokertest.RunSinkBenchmarks(b, brokertest.SinkHarness{}) }

func TestDeadLetterStore(t *testing.T) {
	brokertest.RunDeadLetters(t, func(testing.TB) func() pipeline.DeadLetterStore { return nil })
}

// TestLockedStore names all that an error of a store in use has.
func TestLockedStore(t *testing.T) {
	dir := t.TempDir()
	s, err := logstore.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = logstore.Open(dir, nil)
	var locked *vfs.LockedError
	if !errors.As(err, &locked) || !errors.Is(err, semel.ErrStoreUnavailable) || filepath.Dir(locked.Name) != dir || locked.Holder == "" {
		t.Errorf("%v", err)
	}
}
