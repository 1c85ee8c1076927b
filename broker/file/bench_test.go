package file_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
)

// BenchmarkFileToFile measures lines of 200 bytes through a pipeline from a file
// to a file, whose keys are in the embedded store, with a fifth of duplicates.
// CPU per message is in its profile: what it takes depends on the disk.
func BenchmarkFileToFile(b *testing.B) {
	dir := b.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	writeLines(b, in, b.N)
	store, err := logstore.Open(filepath.Join(dir, "store"), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	}()
	source, err := file.OpenSource([]string{in}, nil)
	if err != nil {
		b.Fatal(err)
	}
	session, err := file.OpenSession(b.Context(), store, filepath.Join(dir, "out.jsonl"), &file.SessionOptions{Source: source, Window: semel.Forever})
	if err != nil {
		b.Fatal(err)
	}
	id, err := key.ParseRule(".event_id")
	if err != nil {
		b.Fatal(err)
	}
	r, err := pipeline.NewRunner(source, session, &pipeline.Options{
		Key: id, Order: pipeline.OrderPartition, Batch: 8192, MaxItems: 65536,
		OnMissing: pipeline.MissingStop, OnLate: pipeline.Stop, OnMismatch: pipeline.Stop, Failure: pipeline.Failure{Then: pipeline.Stop},
	})
	if err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	if err := r.Run(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N), "allocs/msg")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N), "B/msg")
}

func writeLines(b *testing.B, name string, n int) {
	file, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriterSize(file, 1<<20)
	for i := range n {
		id := i
		if i%5 == 4 {
			id = i / 2
		}
		fmt.Fprintf(w, `{"type":"order.placed","time":"2026-01-01T06:16:49.766Z","cents":%d,"user":%d,"address":{"city":"Tórshavn","street":"694"},"note":"ring \"twice\"","event_id":"ec779c36-93f8-4501-bed9-%012d"}`+"\n", i*7919%1e7, i%1e6, id)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
}
