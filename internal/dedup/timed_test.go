package dedup

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// seconds reads a number of seconds since 1970, or a time as in RFC 3339.
func seconds(text []byte) (time.Time, error) {
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return time.Unix(n, 0).UTC(), nil
	}
	return time.Parse(time.RFC3339, string(text))
}

// timedLine is a line of the model: a key, a time in seconds, and a value.
type timedLine struct{ id, at, v int64 }

// keptByTime is the definition of --time: a line is a duplicate if a line of its key that was kept
// before is less than the window away.
func keptByTime(list []timedLine, window int64) (kept, of []int) {
	for i, line := range list {
		first := -1
		for _, k := range kept {
			if distance := list[k].at - line.at; list[k].id == line.id && max(distance, -distance) < window {
				first = k
				break
			}
		}
		of = append(of, first)
		if first < 0 {
			kept = append(kept, i)
		}
	}
	return kept, of
}

func TestTheWindowCountsByTheTimeInALine(t *testing.T) {
	t.Parallel()
	r := random(t)
	for round := range 60 {
		b := setup(t)
		window := 1 + r.Int64N(50)
		var list []timedLine
		for range r.IntN(300) {
			list = append(list, timedLine{r.Int64N(5), r.Int64N(400) - 100, r.Int64N(3)})
		}
		kept, of := keptByTime(list, window)
		write := func(l timedLine) string { return fmt.Sprintf(`{"id":%d,"v":%d,"ts":%d}`, l.id, l.v, l.at) }
		opts := Options{Format: JSONL, Keys: []string{".id"}, Time: ".ts"}
		header := ""
		switch round % 3 {
		case 1:
			write = func(l timedLine) string { return fmt.Sprintf("\"%d\",%d,%d", l.at, l.id, l.v) }
			opts.Format, header = CSV, "ts,id,v\n"
		case 2:
			write = func(l timedLine) string {
				return fmt.Sprintf(`{"x":{"at":%q},"id":"k%d","v":%d}`, time.Unix(l.at, 0).UTC().Format(time.RFC3339), l.id, l.v)
			}
			opts.Keys, opts.Time = []string{"trim(.id)"}, ".x.at"
		}
		var fresh, dups strings.Builder
		in := [2]string{header, header}
		half := r.IntN(len(list) + 1)
		for i, l := range list {
			part := 0
			if i >= half {
				part = 1
			}
			in[part] += write(l) + "\n"
			if of[i] < 0 {
				fresh.WriteString(write(l) + "\n")
			} else {
				dups.WriteString(write(l) + "\n")
			}
		}
		opts.ParseTime, opts.Window = seconds, time.Duration(window)*time.Second
		opts.Duplicates, opts.Threads, opts.blockSize = b.path("dups"), 1+r.IntN(3), 1<<r.IntN(10)
		opts.Inputs = []string{b.file("in0", compressed(r, in[0])), b.file("in1", compressed(r, in[1]))}
		out, report := b.must(opts)
		b.equal(fmt.Sprint("output of round ", round), out, header+fresh.String())
		b.equal("duplicates", b.content("dups"), header+dups.String())
		if report.Fresh != int64(len(kept)) || report.Duplicate != int64(len(list)-len(kept)) {
			t.Fatalf("%+v", report)
		}
	}
}

func TestALineWithoutATimeIsOneWithoutAKey(t *testing.T) {
	t.Parallel()
	in := linesOf(`{"id":1,"ts":"x"}`, `{"id":1}`, `{"id":1,"ts":null}`, `{"id":1,"ts":[1]}`, `{"ts":5}`, `{"id":1,"ts":"9999-01-01T00:00:00Z"}`, `{"id":1,"ts":"0001-01-01T00:00:00Z"}`, `x`, `{"id":1,"ts":5}`, `{"ts":5}`, `x`)
	for policy, want := range map[OnMissing]Counts{
		MissingReject: {Fresh: 1, Rejected: 10, Missing: 10}, MissingPass: {Fresh: 11, Missing: 10}, MissingHash: {Fresh: 9, Duplicate: 2, Missing: 10},
	} {
		b := setup(t)
		_, report := b.must(jsonl(Options{Inputs: []string{b.file("in", in)}, Time: ".ts", ParseTime: seconds, Window: time.Minute, OnMissing: policy, Rejected: b.path("rejected")}))
		want.Read, want.BytesIn, want.BytesOut = 11, int64(len(in)), report.BytesOut
		if report.Counts != want {
			t.Errorf("%s: %+v, want %+v", policy, report.Counts, want)
		}
	}
	for line, want := range map[string]string{
		`{"id":1}`: ".ts is missing", `{"id":1,"ts":{}}`: ".ts is an object", `{"id":1,"ts":"2500-01-01T00:00:00Z"}`: `.ts: "2500-01-01" is not between the years 1678 and 2261`, `{"id":1,"ts":"x"}`: ".ts: parsing",
	} {
		b := setup(t)
		_, _, err := b.run(t.Context(), jsonl(Options{Inputs: []string{b.file("in", line+"\n")}, Time: ".ts", ParseTime: seconds, Window: time.Minute}))
		if err == nil || !strings.Contains(err.Error(), "in:1: "+want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	b := setup(t)
	out, report := b.must(Options{Format: JSONL, Inputs: []string{b.file("in", linesOf(`{"ts":1}`, ``, `{"ts":1}`, `x`))}, Time: ".ts", ParseTime: seconds, Window: time.Minute, OnMissing: MissingPass})
	if out != linesOf(`{"ts":1}`, `x`) || report.Missing != 1 || report.Blank != 1 {
		t.Errorf("with the line as key: %s%+v", out, report)
	}
	out, _ = b.must(Options{Format: CSV, NoHeader: true, Keys: []string{".1"}, Inputs: []string{b.file("in", "a,1\na,2\na,\na\na,90\n")}, Time: ".2", ParseTime: seconds, Window: time.Minute, OnMissing: MissingPass})
	if out != "a,1\na,\na\na,90\n" {
		t.Errorf("without a header: %q", out)
	}
}

func TestKeepNoneKeepsLinesWhoseKeyOccursOnce(t *testing.T) {
	t.Parallel()
	r := random(t)
	for round := range 30 {
		b := setup(t)
		count := map[string]int{}
		var list []string
		for n := range r.IntN(200) {
			line := fmt.Sprintf(`{"id":%d,"v":%d}`, r.IntN(100), r.IntN(2))
			if r.IntN(10) == 0 {
				line = fmt.Sprintf(`{"n":%d}`, n)
			}
			list = append(list, line)
			id, _, _ := strings.Cut(line, `,"v"`)
			count[id]++
		}
		var fresh, dups, rejected strings.Builder
		for _, line := range list {
			id, _, keyed := strings.Cut(line, `,"v"`)
			switch {
			case !keyed:
				rejected.WriteString(line + "\n")
			case count[id] == 1:
				fresh.WriteString(line + "\n")
			default:
				dups.WriteString(line + "\n")
			}
		}
		half := r.IntN(len(list) + 1)
		text := func(list []string) string { return strings.Join(append(list[:len(list):len(list)], ""), "\n") }
		out, report := b.must(jsonl(Options{
			Inputs: []string{b.file("in0", text(list[:half])), b.file("in1", compressed(r, text(list[half:])))},
			Keep:   KeepNone, OnMissing: MissingReject, Rejected: b.path("rejected"), Duplicates: b.path("dups"), Threads: 1 + r.IntN(3), blockSize: 1 << r.IntN(10),
		}))
		b.equal(fmt.Sprint("output of round ", round), out, fresh.String())
		b.equal("duplicates", b.content("dups"), dups.String())
		b.equal("rejected", b.content("rejected"), rejected.String())
		if report.Mismatch != 0 {
			t.Fatalf("%+v", report)
		}
	}
	for _, second := range []string{"abac", "aba", "abacc", "abacb", "baac", "abbc", "dbac", ""} {
		l := newLatest(KeepNone, false, forecast{})
		pass := func(ids string) error {
			digests := make([]semel.Digest, len(ids))
			for i := range ids {
				digests[i] = semel.Digest{ids[i], ids[i], 1, 2, 3}
			}
			return l.decide(lines{digests: digests}, make([]semel.Decision, len(ids)))
		}
		if err := pass("abac"); err != nil {
			t.Fatal(err)
		}
		l.turn()
		err := pass(second)
		if err == nil {
			err = l.check()
		}
		if same := second == "abac" || second == "abca"; same != (err == nil) || !same && !errors.Is(err, errInputsChanged) {
			t.Errorf("%q: error %v", second, err)
		}
	}
}

// explained is a line of --why.
type explained struct {
	Kept, Dropped string
	Differs       []string
	Line          json.RawMessage
	LineBase64    []byte `json:"line_base64"`
}

// TestWhySaysWhereLinesStandAndWhatDiffers looks up each place in the inputs.
func TestWhySaysWhereLinesStandAndWhatDiffers(t *testing.T) {
	t.Parallel()
	r := random(t)
	for round := range 60 {
		b := setup(t)
		opts := Options{Format: JSONL, Keys: []string{".id"}, Duplicates: b.path("dups"), Why: true, Threads: 1 + r.IntN(3), blockSize: 1 << (4 + r.IntN(10))}
		plain := round%4 == 1
		window := int64(0)
		switch {
		case plain:
			opts.Keep = KeepLast
		case round%4 == 2:
			window = 1 + r.Int64N(40)
			opts.Time, opts.ParseTime, opts.Window = ".ts", seconds, time.Duration(window)*time.Second
		}
		header := ""
		if round%3 == 0 {
			opts.Format, header = CSV, "id,odd name,ts\n"
		}
		var list []timedLine
		var texts, places []string
		in := []string{bom + header, header}
		number := []int{strings.Count(header, "\n"), strings.Count(header, "\n")}
		half := r.IntN(200)
		for i := range 200 {
			l := timedLine{r.Int64N(12), r.Int64N(300), r.Int64N(3)}
			text := fmt.Sprintf(`{"id":%d,"o":{"odd name":%d},"pad":%q,"ts":%d}`, l.id, l.v, strings.Repeat("p", 10), l.at)
			if l.v == 2 {
				text = fmt.Sprintf(`{"ts":%d,"o":{"odd\u0020name":%d},"pad":%q, "id":%d}`, l.at, l.v, strings.Repeat("p", 10), l.id)
			}
			if header != "" {
				text = fmt.Sprintf("%d,\"%d\n\",%d", l.id, l.v, l.at)
			}
			part := 0
			if i >= half {
				part = 1
			}
			places = append(places, fmt.Sprintf("%s:%d", b.path(fmt.Sprint("in", part)), number[part]+1))
			number[part] += strings.Count(text, "\n") + 1
			in[part] += text
			if i != half-1 || header != "" {
				in[part] += "\n" // the last line may have no end
			}
			list, texts = append(list, l), append(texts, text)
		}
		for part, text := range in {
			if !plain {
				text = compressed(r, text)
			}
			opts.Inputs = append(opts.Inputs, b.file(fmt.Sprint("in", part), text))
		}
		if window == 0 {
			window = 1 << 40
		}
		_, of := keptByTime(list, window)
		if plain {
			last := map[int64]int{}
			for i, l := range list {
				last[l.id] = i
			}
			for i, l := range list {
				if of[i] = last[l.id]; of[i] == i {
					of[i] = -1
				}
			}
		}
		b.must(opts)
		got := strings.Split(strings.TrimSuffix(b.content("dups"), "\n"), "\n")
		for i, kept := range of {
			if kept < 0 {
				continue
			}
			var e explained
			if len(got) == 0 {
				t.Fatalf("round %d: line %d is not explained", round, i)
			}
			if err := json.Unmarshal([]byte(got[0]), &e); err != nil {
				t.Fatalf("round %d: %s: %v", round, got[0], err)
			}
			got = got[1:]
			var differs []string
			odd, isText := `.o["odd name"]`, header != ""
			if isText {
				odd = `.["odd name"]`
			}
			if list[i].v != list[kept].v {
				differs = append(differs, odd)
			}
			if list[i].at != list[kept].at {
				differs = append(differs, ".ts")
			}
			line := string(e.Line)
			if isText {
				_ = json.Unmarshal(e.Line, &line)
			}
			ofWindow := opts.Time != "" // several kept lines may be near enough
			if !ofWindow && (e.Kept != places[kept] || fmt.Sprint(e.Differs) != fmt.Sprint(differs)) || e.Dropped != places[i] || line != texts[i] {
				t.Fatalf("round %d: line %d, %s, of %s: %+v, line %s, want kept at %s, dropped at %s, differing in %s", round, i, texts[i], texts[kept], e, line, places[kept], places[i], differs)
			}
		}
	}
}

func TestWhyComparesContent(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 60) + "%d" + strings.Repeat("}", 60)
	for _, test := range []struct{ kept, dropped, want string }{
		{`{"id":1,"a":"x"}`, ` {"a":"\u0078" , "id":1}`, `[]`},
		{`{"id":1,"a":1.0}`, `{"id":1,"a":1}`, `[".a"]`},
		{`{"id":1,"a":[1,{"b":1}],"c":[{"x":1,"y":2}]}`, `{"id":1,"a":[1,{"b":2}],"c":[{"y":2,"x":1}]}`, `[".a"]`},
		{`{"id":1,"a":{"b":1,"c":{"d":1}},"z":0}`, `{"id":1,"a":{"b":1,"c":{"d":2},"e":1},"y":0}`, `[".a.c.d",".a.e",".y",".z"]`},
		{`{"id":1,"a":{"b":1}}`, `{"id":1,"a":1}`, `[".a"]`},
		{`{"id":1,"a":1,"a":2}`, `{"a":9,"id":1,"\u0061":2}`, `[]`},
		{`{"id":1,"":1,"a.b":1,"é":1}`, `{"id":1,"":2,"a.b":2,"é":2}`, `[".[\"\"]",".[\"a.b\"]",".é"]`},
		{"{\"id\":1,\"a\":\"\xff\"}", "{\"id\":1,\"a\":\"\xfe\"}", `[".a"]`},
		{`{"id":1,"n":` + fmt.Sprintf(deep, 1) + `}`, `{"id":1,"n":` + fmt.Sprintf(deep, 2) + `}`, `[".n` + strings.Repeat(".a", 31) + `"]`},
	} {
		b := setup(t)
		in := b.file("in.jsonl", linesOf(test.kept, test.dropped))
		b.must(jsonl(Options{Inputs: []string{in}, Why: true, Duplicates: b.path("dups")}))
		want := fmt.Sprintf(`{"kept":"%s:1","dropped":"%s:2","differs":%s,"line":%s}`+"\n", in, in, test.want, test.dropped)
		b.equal("the explanation of "+test.dropped, b.content("dups"), want)
	}
	b := setup(t)
	out, _ := b.must(Options{Format: Text, Stdin: strings.NewReader("a\xff\nb\na\xff\r\nb"), Why: true, Duplicates: b.path("dups")})
	b.equal("standard input", out+b.content("dups"), "a\xff\nb\n"+
		`{"kept":"standard input:1","dropped":"standard input:3","differs":[],"line_base64":"Yf8="}`+"\n"+`{"kept":"standard input:2","dropped":"standard input:4","differs":[],"line":"b"}`+"\n")
	long := strings.Repeat("x", 1<<20)
	in := b.file("long.jsonl", linesOf(`{"id":1,"x":"`+long+`"}`, `{"id":1,"x":"`+long+`y"}`)+`{"id":1}`)
	b.must(jsonl(Options{Inputs: []string{in}, Why: true, Keep: KeepLast, Duplicates: b.path("dups"), Force: true}))
	if got := b.content("dups"); strings.Count(got, `"differs":[".x"],"line":{"id":1`) != 2 || strings.Count(got, `"kept":"`+in+`:3"`) != 2 {
		t.Errorf("of long lines: %d bytes", len(got))
	}
	list, _ := b.must(jsonl(Options{Format: JSONL, Inputs: []string{b.file("in", linesOf(`{"id":1}`, `{"id":1,"v":2}`, `{}`, `nothing`, `nothing`))}, OnMissing: MissingHash, OnMismatch: MismatchPass, Why: true, Duplicates: b.path("dups"), Force: true}))
	if list != linesOf(`{"id":1}`, `{"id":1,"v":2}`, `{}`, `nothing`) || !strings.Contains(b.content("dups"), `in:5","differs":[],"line":"nothing"}`) {
		t.Errorf("%s%s", list, b.content("dups"))
	}
}
