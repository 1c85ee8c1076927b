package pipeline_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/pipeline"
)

func TestADeadLetterDirPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunDeadLetters(t, func(tb testing.TB) func() pipeline.DeadLetterStore {
		dir := filepath.Join(tb.TempDir(), "dead-letter store [1]*")
		return func() pipeline.DeadLetterStore {
			letters, err := pipeline.OpenDeadLetterDir(dir)
			if err != nil {
				tb.Fatal(err)
			}
			return letters
		}
	})
}

func TestFilesLeftByAKillAreNotMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	letters, err := pipeline.OpenDeadLetterDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := pipeline.Parked{ID: "1", Pipeline: "p", Reason: "attempts"}
	if err := letters.Park(t.Context(), []pipeline.Parked{p}); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		".new-123":    `{"id":"2"`,     // the process was killed in Park
		"3.redrive":   "",              // the process was killed in Settle
		".new-7.json": `{"pipeline":"`, // an unfinished file
	} {
		if err := os.WriteFile(filepath.Join(dir, "p", name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	if err := letters.List(t.Context(), "", func(*pipeline.Parked) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("%d messages, %v; want 1", n, err)
	}
	if list, err := letters.Queued(t.Context(), "p", 10); err != nil || len(list) != 0 {
		t.Errorf("queued: %v, %v", list, err)
	}
}

func TestForeignFileDoesNotHideParkedMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	letters, err := pipeline.OpenDeadLetterDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.Park(t.Context(), []pipeline.Parked{{ID: "1", Pipeline: "p"}, {ID: "2", Pipeline: "p"}}); err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{"junk": "junk", "empty": "", "copy": `{"ID":"1","Pipeline":"p"}`, "list": "{}"}
	for id, data := range bad {
		if err := os.WriteFile(filepath.Join(dir, "p", id+".json"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "p", "backup.json"), 0o700); err != nil { // a directory
		t.Fatal(err)
	}
	if err := letters.Queue(t.Context(), []string{"junk", "1"}); err != nil {
		t.Fatal(err)
	}
	var ids []string
	err = letters.List(t.Context(), "p", func(p *pipeline.Parked) bool { ids = append(ids, p.ID); return true })
	if !slices.Equal(ids, []string{"1", "2"}) || !errors.Is(err, pipeline.ErrUnreadable) {
		t.Errorf("%v, %v", ids, err)
	}
	for id := range bad {
		if name := filepath.Join(dir, "p", id+".json"); !strings.Contains(fmt.Sprint(err), name+" is damaged") {
			t.Errorf("%s is not named: %v", name, err)
		}
		if _, err := letters.Get(t.Context(), id); !errors.Is(err, pipeline.ErrUnreadable) {
			t.Errorf("%s: %v", id, err)
		}
		if err := letters.Settle(t.Context(), &pipeline.Parked{ID: id}, pipeline.Settlement{How: pipeline.HowSkipped, Actor: "me", Reason: "x"}); !errors.Is(err, pipeline.ErrUnreadable) {
			t.Errorf("%s was removed: %v", id, err)
		}
	}
	if list, err := letters.Queued(t.Context(), "p", 10); err != nil || len(list) != 1 || list[0].ID != "1" {
		t.Errorf("queued: %v, %v", list, err)
	}
}

func TestPipelineNameThatLeavesTheDeadLetterDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "../p", "a/b", ".hidden"} {
		if err := letters.Park(t.Context(), []pipeline.Parked{{ID: "1", Pipeline: name}}); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

func TestMessageAtTheOffsetOfAParkedMessageIsParkedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		// A rotated file starts at offset 0 again. So does a topic that was created
		// again.
		for _, body := range []string{"first, without a key", "second, without a key", "second, without a key"} {
			r := newRig(t)
			r.letters, r.opts.DeadLetters = letters, letters
			r.add(0, "", "").Message.Body = []byte(body)
			r.run()
			r.wantAcked(1)
		}
		var bodies []string
		if err := letters.List(t.Context(), "", func(p *pipeline.Parked) bool {
			bodies = append(bodies, string(p.Message.Body))
			return true
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(bodies)
		if want := []string{"first, without a key", "second, without a key"}; !slices.Equal(bodies, want) {
			t.Errorf("parked: %q, want %q", bodies, want)
		}
	})
}
