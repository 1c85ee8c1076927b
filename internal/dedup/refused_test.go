package dedup

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRefusedRunCreatesNoStore(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(b *bundle) (store, out string){
		"foreign output, empty directory": func(b *bundle) (string, string) {
			return b.path("store"), b.file("out", "theirs")
		},
		"foreign files": func(b *bundle) (string, string) {
			b.file("store/theirs", "x")
			return b.path("store"), b.path("out")
		},
		"file": func(b *bundle) (string, string) {
			return b.file("file", "x"), b.path("out")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if err := os.Mkdir(b.path("store"), 0o755); err != nil {
				t.Fatal(err)
			}
			opts := Options{Inputs: []string{b.file("in", "a\n")}}
			opts.Store, opts.Output = make(b)
			before := b.content("store/theirs")
			_, _, err := b.run(t.Context(), opts)
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("error %v", err)
			}
			names, err := os.ReadDir(b.path("store"))
			if err != nil || len(names) > 1 || len(names) == 1 && names[0].Name() != "theirs" || b.content("store/theirs") != before {
				t.Errorf("the directory holds %v, %v", names, err)
			}
		})
	}
}

func TestAllInvalidOptionsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := b.file("in.jsonl", "{}\n")
	table := b.file("in.csv", "a,b\n")
	other := b.file("other.csv", "a,c\n")
	twice := b.file("twice.csv", "a,a\n")
	packed := b.file("packed.jsonl", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\xe5\x02\x00\x43\xbf\xa6\xa3\x03\x00\x00\x00")
	link := b.path("link")
	if err := os.Symlink(in, link); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		opts Options
		want []string
	}{
		{Options{Inputs: []string{b.path("no1"), in, b.path("no2"), b.dir}}, []string{"no1: there is no such file", "no2: there is no such file", "this is a directory"}},
		{Options{Inputs: []string{in}, Output: in}, []string{"is also an input"}},
		{Options{Inputs: []string{in}, Output: link}, []string{"is also an input"}},
		{Options{Inputs: []string{in}, Report: link}, []string{"--report", "is also an input"}},
		{Options{Inputs: []string{in}, Output: b.path("o"), Duplicates: b.path("./o")}, []string{"are the same file"}},
		{Options{Inputs: []string{in}, Output: b.dir}, []string{"this is a directory"}},
		{Options{Inputs: []string{in}, Output: b.path("no/o")}, []string{"--output", "there is no directory "}},
		{Options{Inputs: []string{in}, OnMissing: MissingReject}, []string{"add --rejected FILE"}},
		{Options{Inputs: []string{in}, Format: "x", OnMissing: "y", OnMismatch: "z", Threads: -1, Window: -1}, []string{"--format", "--on-missing", "--on-mismatch", "--threads", "--window"}},
		{Options{Inputs: []string{in}, Keys: []string{".a[", "lien", "timestamp", "header:x"}}, []string{"column 4", "there is no such rule", "not stable", "no such property"}},
		{Options{Inputs: []string{in}, Append: true, Force: true}, []string{"choose one"}},
		{Options{Inputs: []string{in}, Lossy: 0.1, Store: b.path("s"), Window: time.Hour}, []string{"--expect", "--store", "--window"}},
		{Options{Inputs: []string{in}, Expect: 5}, []string{"--lossy"}},
		{Options{Inputs: []string{in, table}}, []string{"looks like jsonl", "like csv"}},
		{Options{Inputs: []string{table, other}, Keys: []string{".a"}}, []string{"have different headers"}},
		{Options{Inputs: []string{table}, Keys: []string{".z"}}, []string{`there is no column "z": the header has a, b`}},
		{Options{Inputs: []string{table}, Keys: []string{".a.b"}}, []string{"a CSV column is"}},
		{Options{Inputs: []string{twice}, Keys: []string{".a"}}, []string{"two columns"}},
		{Options{Inputs: []string{in}, Format: Text, Keys: []string{".id"}}, []string{"--format jsonl"}},
		{Options{Inputs: []string{in, packed}, Keep: KeepLast, Why: true, Duplicates: b.path("d")}, []string{"packed.jsonl is compressed", "decompress it first"}},
		{Options{Inputs: []string{in}, Keep: KeepNone, Why: true, Store: b.path("s"), Time: ".t", OnMismatch: MismatchPass, Window: time.Hour}, []string{"add --duplicates FILE", "--keep none and --store", "--keep none and --window", "--keep none and --time", "no line is kept with which"}},
		{Options{Inputs: []string{in}, Keep: KeepNone, Why: true, Duplicates: b.path("d")}, []string{"--why and --keep none"}},
		{Options{Inputs: []string{in}, Why: true, Duplicates: b.path("d"), Store: b.path("s"), Time: ".t", Window: time.Hour}, []string{"--why and --store", "--time and --store"}},
		{Options{Inputs: []string{in}, Why: true, Duplicates: b.path("d"), Lossy: 0.1, Expect: 5}, []string{"--why and --lossy"}},
		{Options{Inputs: []string{in}, Time: ".t", Format: Text}, []string{"add --window", "lines of text have no members"}},
		{Options{Inputs: []string{in}, Time: "t", Window: time.Hour}, []string{`--time "t": write the path of a time`}},
		{Options{Inputs: []string{table}, Keys: []string{".a"}, Time: ".z", Window: time.Hour}, []string{`--time .z: there is no column "z"`}},
		{Options{Inputs: []string{table}, Keys: []string{".a"}, Time: ".z.y", Window: time.Hour}, []string{"--time .z.y: a CSV column is"}},
		{Options{Inputs: []string{Stdio, Stdio}}, []string{"can be read only once"}},
	} {
		_, _, err := b.run(t.Context(), test.opts)
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%+v: error %v", test.opts, err)
			continue
		}
		for _, want := range test.want {
			if !slices.ContainsFunc(refused.Problems, func(p string) bool { return strings.Contains(p, want) }) {
				t.Errorf("%q does not say %q", refused.Problems, want)
			}
		}
	}
	if names, err := os.ReadDir(b.dir); err != nil || len(names) != 6 {
		t.Errorf("refused runs made files: %v, %v", names, err)
	}
}
