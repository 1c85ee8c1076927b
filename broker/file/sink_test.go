package file_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/vfs"
)

func itemsOf(list ...string) (items []*pipeline.Item) {
	partition := pipeline.NewPartition("test")
	for _, text := range list {
		it := &pipeline.Item{Partition: partition, Decision: semel.Fresh}
		it.Message.Body = []byte(text)
		it.Call.Key = semel.Key{ID: text}
		items = append(items, it)
	}
	return items
}

// deliver delivers lines and returns the error of each.
func deliver(t *testing.T, s pipeline.Sink, list ...string) (errs []error) {
	t.Helper()
	items := itemsOf(list...)
	s.Deliver(t.Context(), items)
	for _, it := range items {
		errs = append(errs, it.Err)
	}
	return errs
}

func openSink(t *testing.T, disk vfs.FS) *file.Sink {
	t.Helper()
	s, err := file.OpenSink("/out", &file.SinkOptions{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func content(t *testing.T, disk vfs.FS) string {
	t.Helper()
	data, err := disk.ReadFile("/out")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSinkWritesBodiesAsLines(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	s := openSink(t, disk)
	errs := deliver(t, s, "one", "{\n \"a\" : 1.0,\n \"b\": \"x\\ny\"\n}", "not\nJSON", "")
	var permanent *semel.PermanentError
	if errs[0] != nil || errs[1] != nil || errs[3] != nil || !errors.As(errs[2], &permanent) {
		t.Errorf("errors %v", errs)
	}
	if got, want := content(t, disk.Survive(faultfs.OnlySynced, nil)), "one\n{\"a\":1.0,\"b\":\"x\\ny\"}\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if errs := deliver(t, s, "late"); !errors.Is(errs[0], semel.ErrClosed) {
		t.Errorf("after Close: %v", errs)
	}
}

func TestSinkEndsALineThatWasCutShort(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, []byte("whole\nha"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := file.OpenSink(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var locked *vfs.LockedError
	if _, err := file.OpenSink(path, nil); !errors.As(err, &locked) || locked.Name != path+".lock" || !strings.Contains(err.Error(), "file: "+path+" is held by "+locked.Holder) || semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("a second sink: %v", err)
	}
	deliver(t, s, "half")
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "whole\nha\nhalf\n" {
		t.Errorf("got %q", got)
	}
}

func TestSinkIsUnavailableWhileTheDiskIsFull(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	s := openSink(t, disk)
	deliver(t, s, "one")
	disk.SetFree(6)
	errs := deliver(t, s, "two", "three")
	var away *pipeline.UnavailableError
	for _, err := range errs {
		if !errors.As(err, &away) || !errors.Is(err, syscall.ENOSPC) || errors.Is(err, semel.ErrOutcomeUnknown) {
			t.Errorf("error %v", err)
		}
	}
	if got := content(t, disk); got != "one\n" {
		t.Errorf("a part of what failed is there: %q", got)
	}
	disk.SetFree(-1)
	if errs := deliver(t, s, "two", "three"); errors.Join(errs...) != nil {
		t.Errorf("errors %v", errs)
	}
	if got := content(t, disk); got != "one\ntwo\nthree\n" {
		t.Errorf("got %q", got)
	}
}

// TestASinkRepeatsAWriteAfterAFailedSync: what a sync should have written is written
// again, and not only synced again.
func TestASinkRepeatsAWriteAfterAFailedSync(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	s := openSink(t, disk)
	deliver(t, s, "one")
	disk.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync {
			return syscall.EIO
		}
		return nil
	})
	if errs := deliver(t, s, "two"); !errors.Is(errs[0], semel.ErrOutcomeUnknown) {
		t.Errorf("errors %v", errs)
	}
	disk.SetHook(nil)
	if errs := deliver(t, s, "two"); errs[0] != nil {
		t.Errorf("errors %v", errs)
	}
	if got := content(t, disk.Survive(faultfs.OnlySynced, nil)); got != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
}

func TestConcurrentDeliveriesShareOneSync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := faultfs.New()
		s := openSink(t, disk)
		syncs, goOn := 0, make(chan struct{})
		disk.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.Sync {
				syncs++
				<-goOn
			}
			return nil
		})
		var delivering sync.WaitGroup
		delivering.Go(func() { deliver(t, s, "first") })
		synctest.Wait()
		for range 20 {
			delivering.Go(func() { deliver(t, s, "other") })
		}
		synctest.Wait()
		close(goOn)
		delivering.Wait()
		if got := strings.Count(content(t, disk), "other\n"); got != 20 || syncs != 2 {
			t.Errorf("%d lines and %d syncs, want 20 and 2", got, syncs)
		}
	})
}

// shortWriter takes so many bytes and no more.
type shortWriter struct {
	bytes.Buffer
	room int
}

func (w *shortWriter) Write(data []byte) (int, error) {
	n := min(len(data), w.room)
	w.room -= n
	w.Buffer.Write(data[:n])
	if n < len(data) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func TestAStreamReportsTheLinesThatItWrote(t *testing.T) {
	t.Parallel()
	errs := deliver(t, file.NewStream(&shortWriter{room: 6}), "one", "two", "three")
	var away *pipeline.UnavailableError
	if errs[0] != nil || !errors.Is(errs[1], semel.ErrOutcomeUnknown) || !errors.As(errs[2], &away) {
		t.Errorf("errors %v", errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	items := itemsOf("one")
	file.NewStream(new(bytes.Buffer)).Deliver(ctx, items)
	if !errors.Is(items[0].Err, context.Canceled) {
		t.Errorf("under an ended context: %v", items[0].Err)
	}
}

// openStore opens a store in a new directory.
func openStore(t *testing.T) *logstore.Store {
	t.Helper()
	store, err := logstore.Open(filepath.Join(t.TempDir(), "keys"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}
