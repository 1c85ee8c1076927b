package examples_test

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestBatchJobContinuesAfterAKill(t *testing.T) {
	t.Parallel()
	// The service takes a batch, then waits with the next until the job is killed.
	var lock sync.Mutex
	var got []string
	var hang atomic.Bool
	hang.Store(true)
	arrived := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var ids []string
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			_, id, _ := strings.Cut(lines.Text(), `"event_id":"`)
			ids = append(ids, id[:1])
		}
		lock.Lock()
		defer lock.Unlock()
		if len(got) > 0 && hang.Load() {
			arrived <- struct{}{}
			<-r.Context().Done()
			return
		}
		got = append(got, strings.Join(ids, ""))
	}))
	t.Cleanup(service.Close)
	dir := t.TempDir()
	write := func(name, ids string) string {
		var text strings.Builder
		for _, id := range strings.Split(ids, "") {
			text.WriteString(strings.ReplaceAll(`{"event_id":"ID","amount":1}`, "ID", id) + "\n")
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	monday, tuesday := write("monday.jsonl", "abcda"), write("tuesday.jsonl", "ce")
	args := []string{"-dir", filepath.Join(dir, "sent"), "-url", service.URL, "-batch", "2", monday, tuesday}

	job := start(t, nil, "batch-files", args...)
	<-arrived
	job.kill()
	hang.Store(false)

	job = start(t, nil, "batch-files", args...)
	if output, err := job.end(); err != nil || output != "sent 3, already sent 4\n" {
		t.Errorf("after the kill: %v %s", err, output)
	}
	lock.Lock()
	if batches := strings.Join(got, " "); batches != "ab cd e" {
		t.Errorf("the service got %s", batches)
	}
	lock.Unlock()

	if err := os.WriteFile(filepath.Join(dir, "wednesday.jsonl"), []byte("{}\n"+`{"event_id":"f"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	job = start(t, nil, "batch-files", append(args, filepath.Join(dir, "wednesday.jsonl"))...)
	if output, err := job.end(); err == nil || !strings.Contains(output, "wednesday.jsonl:1: the line has no event_id") ||
		!strings.Contains(output, "sent 1, already sent 7\n") || !strings.Contains(output, "1 lines were not sent") {
		t.Errorf("with a bad line: %v %s", err, output)
	}
}
