package lines

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestTheNextDayHasOldAndNewIDs compares with the ids of the first day.
func TestTheNextDayHasOldAndNewIDs(t *testing.T) {
	t.Parallel()
	const count = 20_000
	var b bytes.Buffer
	first, err := Generate(&b, 7, count)
	if err != nil {
		t.Fatal(err)
	}
	old := map[string]bool{}
	for line := range bytes.Lines(b.Bytes()) {
		id, _ := EventID(bytes.ReplaceAll(line, []byte(`": "`), []byte(`":"`)))
		old[string(id)] = true
	}
	b.Reset()
	next, err := GenerateNext(&b, first, count)
	if err != nil {
		t.Fatal(err)
	}
	answer := sha256.New()
	total, fresh, seen := 0, 0, map[string]bool{}
	for line := range bytes.Lines(b.Bytes()) {
		id, ok := EventID(line)
		if total++; !ok {
			t.Fatalf("line %d has no id", total)
		}
		if !old[string(id)] && !seen[string(id)] {
			answer.Write(line)
			fresh++
		}
		seen[string(id)] = true
	}
	if total != count || fresh != next.Fresh || hex.EncodeToString(answer.Sum(nil)) != next.FreshSHA256 || fresh < count/6 || fresh > count/4 {
		t.Errorf("%d lines, %d with new ids, want %+v", total, fresh, next)
	}
}

func TestGeneratedLinesMatchTheirSummary(t *testing.T) {
	t.Parallel()
	const count = 50_000
	var b bytes.Buffer
	s, err := Generate(&b, 7, count)
	if err != nil {
		t.Fatal(err)
	}
	lastSeen := map[string]int{}
	first := map[string][]byte{}
	answer := sha256.New()
	places := map[int]int{}
	var near, same, total int
	for i, line := range bytes.SplitAfter(b.Bytes(), []byte("\n")) {
		if len(line) == 0 {
			break
		}
		total++
		var doc struct {
			ID string `json:"event_id"`
		}
		if err := json.Unmarshal(line, &doc); err != nil || len(doc.ID) != 36 {
			t.Fatalf("line %d: id %q, %v", i+1, doc.ID, err)
		}
		if bytes.Count(line, []byte(`"event_id"`)) != 1 {
			t.Fatalf("line %d has event_id more than once", i+1)
		}
		if at, ok := lastSeen[doc.ID]; ok {
			if i-at <= Near {
				near++
			}
			if bytes.Equal(line, first[doc.ID]) {
				same++
			}
		} else {
			first[doc.ID] = line
			answer.Write(line)
			places[bytes.Count(line[:bytes.Index(line, []byte(`"event_id"`))], []byte(`":`))]++
		}
		lastSeen[doc.ID] = i
	}
	if total != count || len(first) != s.Fresh || int64(b.Len()) != s.Bytes || hex.EncodeToString(answer.Sum(nil)) != s.FreshSHA256 {
		t.Errorf("%d lines, %d ids, %d bytes, want %+v", total, len(first), b.Len(), s)
	}
	duplicates := count - s.Fresh
	between := func(what string, part, whole int, low, high float64) {
		t.Helper()
		if share := float64(part) / float64(whole); share < low || share > high {
			t.Errorf("%s: %.3f, want %.2f to %.2f", what, share, low, high)
		}
	}
	between("duplicates", duplicates, count, .19, .21)
	between("near duplicates", near, duplicates, .48, .56)
	between("identical duplicates", same, duplicates, .48, .52)
	between("bytes a line", b.Len(), count, 195, 225)
	for place, n := range places {
		between(fmt.Sprintf("event_id after %d members", place), n, s.Fresh, .31, .36)
	}
}

func TestGeneratedRecordsMatchTheirSummary(t *testing.T) {
	t.Parallel()
	const count = 20_000
	var b bytes.Buffer
	s, err := GenerateCSV(&b, 7, count)
	if err != nil {
		t.Fatal(err)
	}
	size := b.Len()
	records, err := csv.NewReader(bytes.NewReader(b.Bytes())).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	first, answer := map[string]bool{}, sha256.New()
	lines := bytes.SplitAfter(b.Bytes(), []byte("\n"))
	quoted := 0
	for i, record := range records {
		if bytes.Contains(lines[i], []byte{'"'}) {
			quoted++
		}
		if id := record[0]; !first[id] {
			first[id] = true
			answer.Write(lines[i])
		}
	}
	if records[0][0] != "event_id" || len(records)-1 != count || len(first)-1 != s.Fresh || int64(size) != s.Bytes || hex.EncodeToString(answer.Sum(nil)) != s.FreshSHA256 {
		t.Errorf("%d records, %d ids, %d bytes, want %+v", len(records)-1, len(first)-1, size, s)
	}
	if quoted < count/5 || quoted > count*3/10 || size < 100*count || size > 140*count {
		t.Errorf("%d records with quotes, %d bytes", quoted, size)
	}
}

func TestGeneratedShortLinesMatchTheirSummary(t *testing.T) {
	t.Parallel()
	const count = 20_000
	var b bytes.Buffer
	s, err := GenerateShort(&b, 7, count)
	if err != nil {
		t.Fatal(err)
	}
	if b.Len() != 40*count || s.Bytes != 40*count {
		t.Fatalf("%d bytes, want %d; the summary is %+v", b.Len(), 40*count, s)
	}
	first, answer := map[string]bool{}, sha256.New()
	for line := range bytes.Lines(b.Bytes()) {
		if !first[string(line)] {
			first[string(line)] = true
			answer.Write(line)
		}
	}
	if len(first) != s.Fresh || hex.EncodeToString(answer.Sum(nil)) != s.FreshSHA256 {
		t.Errorf("%d different lines, want %+v", len(first), s)
	}
	if duplicates := count - s.Fresh; duplicates < count*19/100 || duplicates > count*21/100 {
		t.Errorf("%d duplicates", duplicates)
	}
}

func TestInputFileIsGeneratedAgainOnlyWhenItDiffers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "in.jsonl")
	first, err := File(path, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	again, err := File(path, 1, 100)
	if err != nil || again != first {
		t.Errorf("%+v, %v; want %+v", again, err, first)
	}
	data, err := os.ReadFile(path)
	if err != nil || int64(len(data)) != first.Bytes {
		t.Errorf("the file has %d bytes, %v; want %d", len(data), err, first.Bytes)
	}
	if other, err := File(path, 2, 100); err != nil || other.FreshSHA256 == first.FreshSHA256 {
		t.Errorf("another seed gives %+v, %v", other, err)
	}
}
