package dedup

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestUnusualInputLinesAreKeptByteForByte(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		opts   Options
		inputs []string
		want   string
		counts Counts // only counts other than 0, without Read and the bytes
	}{
		{"values of other types differ", jsonl(Options{}),
			[]string{linesOf(`{"id":42}`, `{"id":"42"}`, `{"id":true}`, `{"id":"true"}`, `{"id":false}`)},
			linesOf(`{"id":42}`, `{"id":"42"}`, `{"id":true}`, `{"id":"true"}`, `{"id":false}`), Counts{Fresh: 5}},
		{"numbers compare by their text", jsonl(Options{}),
			[]string{linesOf(`{"id":1}`, `{"id":1.0}`, `{"id":1e0}`, `{"id":12345678901234567890}`, `{"id":12345678901234567891}`, `{"id":1}`)},
			linesOf(`{"id":1}`, `{"id":1.0}`, `{"id":1e0}`, `{"id":12345678901234567890}`, `{"id":12345678901234567891}`), Counts{Fresh: 5, Duplicate: 1}},
		{"strings compare after escapes", jsonl(Options{}),
			[]string{linesOf(`{"id":"a"}`, `{"id":"\u0061"}`, `{"\u0069d":"a"}`, `{"id":"\/"}`, `{"id":"/"}`)},
			linesOf(`{"id":"a"}`, `{"id":"\/"}`), Counts{Fresh: 2, Duplicate: 3}},
		{"strings are not normalised, trimmed or folded", jsonl(Options{}),
			[]string{linesOf(`{"id":"é"}`, "{\"id\":\"e\u0301\"}", `{"id":"a"}`, `{"id":"A"}`, `{"id":" a"}`)},
			linesOf(`{"id":"é"}`, "{\"id\":\"e\u0301\"}", `{"id":"a"}`, `{"id":"A"}`, `{"id":" a"}`), Counts{Fresh: 5}},
		{"invalid UTF-8 and half surrogate pairs stay apart", jsonl(Options{}),
			[]string{linesOf("{\"id\":\"\xff\"}", "{\"id\":\"\xfe\"}", `{"id":"\ud800"}`, `{"id":"\ud801"}`, "{\"id\":\"\uFFFD\"}")},
			linesOf("{\"id\":\"\xff\"}", "{\"id\":\"\xfe\"}", `{"id":"\ud800"}`, `{"id":"\ud801"}`, "{\"id\":\"\uFFFD\"}"), Counts{Fresh: 5}},
		{"the last of two members wins", jsonl(Options{}),
			[]string{linesOf(`{"id":1,"id":2}`, `{"id":2}`, `{"id":1}`)}, linesOf(`{"id":1,"id":2}`, `{"id":1}`), Counts{Fresh: 2, Duplicate: 1}},
		{"other white space and order is the same content", jsonl(Options{}),
			[]string{linesOf(`{"id":1,"a":[1,2]}`, `{ "a" : [1, 2], "id" : 1 }`, `{"id":1,"a":[2,1]}`)}, linesOf(`{"id":1,"a":[1,2]}`), Counts{Fresh: 1, Duplicate: 2, Mismatch: 1}},
		{"other content is passed", jsonl(Options{OnMismatch: MismatchPass}),
			[]string{linesOf(`{"id":1}`, `{"id":1,"a":1}`, `{"id":1}`)}, linesOf(`{"id":1}`, `{"id":1,"a":1}`), Counts{Fresh: 2, Duplicate: 1, Mismatch: 1}},
		{"two rules make one key, without collisions", Options{Format: JSONL, Keys: []string{".a", ".b"}},
			[]string{linesOf(`{"a":"x","b":"yz"}`, `{"a":"xy","b":"z"}`, `{"b":"yz","a":"x"}`)}, linesOf(`{"a":"x","b":"yz"}`, `{"a":"xy","b":"z"}`), Counts{Fresh: 2, Duplicate: 1}},
		{"hash of the document", Options{Format: JSONL, Keys: []string{"hash(.)"}},
			[]string{linesOf(`{"a":1,"b":2}`, `{ "b":2, "a":1 }`, `{"a":1.0,"b":2}`, `[1]`, `"x"`)}, linesOf(`{"a":1,"b":2}`, `{"a":1.0,"b":2}`, `[1]`, `"x"`), Counts{Fresh: 4, Duplicate: 1}},
		{"hash of members takes objects", Options{Format: JSONL, Keys: []string{"hash(.a,.b)"}},
			[]string{linesOf(`{"a":{"x":1,"y":2},"b":[]}`, `{"b":[ ],"a":{"y":2,"x":1},"c":3}`)}, linesOf(`{"a":{"x":1,"y":2},"b":[]}`), Counts{Fresh: 1, Duplicate: 1, Mismatch: 1}},
		{"hash of all but some members", Options{Format: JSONL, Keys: []string{"hash(. - .at - .m.at)"}},
			[]string{linesOf(`{"a":1,"at":1,"m":{"at":1}}`, `{"m":{},"at":{"x":2},"a":1}`, `{"a":1,"m":{"x":{"at":1}}}`)}, linesOf(`{"a":1,"at":1,"m":{"at":1}}`, `{"a":1,"m":{"x":{"at":1}}}`), Counts{Fresh: 2, Duplicate: 1}},
		{"hash of members without some of theirs", Options{Format: JSONL, Keys: []string{"hash(.a,.m - .m.at)"}},
			[]string{linesOf(`{"a":1,"m":{"at":1}}`, `{"m":{},"a":1}`, `{"m":{},"a":1,"b":2}`)}, linesOf(`{"a":1,"m":{"at":1}}`), Counts{Fresh: 1, Duplicate: 2, Mismatch: 1}},
		{"functions around a path", Options{Format: JSONL, Keys: []string{"lower(trim(.mail))", "number(.n)", "nfc(.name)"}},
			[]string{linesOf(`{"mail":"Ann@x","n":7,"name":"é"}`, "{\"mail\":\" ann@X\",\"n\":\"7.0\",\"name\":\"e\u0301\"}", `{"mail":"ann@x","n":8,"name":"é"}`)},
			linesOf(`{"mail":"Ann@x","n":7,"name":"é"}`, `{"mail":"ann@x","n":8,"name":"é"}`), Counts{Fresh: 2, Duplicate: 1, Mismatch: 1}},
		{"a function that leaves nothing leaves no key", Options{Format: JSONL, Keys: []string{"trim(.id)"}, OnMissing: MissingPass},
			[]string{linesOf(`{"id":" "}`, `{"id":"\t"}`, `{"id":" x"}`)}, linesOf(`{"id":" "}`, `{"id":"\t"}`, `{"id":" x"}`), Counts{Fresh: 3, Missing: 2}},
		{"functions around a column", Options{Format: CSV, Keys: []string{"lower(.mail)", "number(trim(.n))"}},
			[]string{"n,mail\n 7.0,\"A,\"\"B\"\"\"\n07,\"a,\"\"b\"\"\"\n7e1,a\n"}, "n,mail\n 7.0,\"A,\"\"B\"\"\"\n7e1,a\n", Counts{Fresh: 2, Duplicate: 1, Mismatch: 1}},
		{"a function around a column that leaves nothing", Options{Format: CSV, NoHeader: true, Keys: []string{"trim(.2)"}, OnMissing: MissingPass},
			[]string{"a, \nb\nc,x\nd, x\n"}, "a, \nb\nc,x\n", Counts{Fresh: 3, Missing: 2, Duplicate: 1, Mismatch: 1}},
		{"paths into arrays and odd names", Options{Format: JSONL, Keys: []string{`.list[1].id`, `.["odd.name"]`}},
			[]string{linesOf(`{"list":[0,{"id":7}],"odd.name":"x"}`, `{"odd.name":"x","list":[9,{"id":7}]}`)}, linesOf(`{"list":[0,{"id":7}],"odd.name":"x"}`), Counts{Fresh: 1, Duplicate: 1, Mismatch: 1}},
		{"lines without a key pass", jsonl(Options{OnMissing: MissingPass}),
			[]string{linesOf(`{}`, `{}`, `x`, `{"id":""}`, `{"id":{}}`)}, linesOf(`{}`, `{}`, `x`, `{"id":""}`, `{"id":{}}`), Counts{Fresh: 5, Missing: 5}},
		{"lines without a key take their content", jsonl(Options{OnMissing: MissingHash}),
			[]string{linesOf(`{"a":1}`, `{ "a":1 }`, `x`, `x`, `x `)}, linesOf(`{"a":1}`, `x`, `x `), Counts{Fresh: 3, Duplicate: 2, Missing: 5}},
		{"blank JSON lines are counted", jsonl(Options{}),
			[]string{"\n{\"id\":1}\n\r\n \t\n{\"id\":1}\n\n"}, "{\"id\":1}\n", Counts{Fresh: 1, Duplicate: 1, Blank: 4}},
		{"blank text lines are lines", Options{Format: Text},
			[]string{"\na\n\n"}, "\na\n", Counts{Fresh: 2, Duplicate: 1}},
		{"a line is its bytes without its line end", Options{Format: Text},
			[]string{"a\r\na\nb\nb\r\na \n"}, "a\r\nb\na \n", Counts{Fresh: 3, Duplicate: 2}},
		{"NUL and other bytes are bytes", Options{Format: Text},
			[]string{"\x00\n\x00s\n\xff\n\x00\n"}, "\x00\n\x00s\n\xff\n", Counts{Fresh: 3, Duplicate: 1}},
		{"a missing line end is added", Options{Format: Text},
			[]string{"a\nb", "b\nc"}, "a\nb\nc\n", Counts{Fresh: 3, Duplicate: 1}},
		{"the byte order mark is kept once", jsonl(Options{}),
			[]string{bom + linesOf(`{"id":1}`, `{"id":2}`), bom + linesOf(`{"id":1}`, `{"id":3}`)}, bom + linesOf(`{"id":1}`, `{"id":2}`, `{"id":3}`), Counts{Fresh: 3, Duplicate: 1}},
		{"the byte order mark is no part of a line", Options{Format: Text},
			[]string{bom + "a\na\n"}, bom + "a\n", Counts{Fresh: 1, Duplicate: 1}},
		{"a member of 63 names and more", jsonl(Options{}),
			[]string{linesOf(`{"`+strings.Repeat("n", 300)+`":0,"id":1}`, `{"id":1}`)}, linesOf(`{"` + strings.Repeat("n", 300) + `":0,"id":1}`), Counts{Fresh: 1, Duplicate: 1, Mismatch: 1}},
		{"CSV keeps one header", Options{Format: CSV, Keys: []string{".id"}},
			[]string{"id,v\n1,a\n2,b\n", "id,v\n2,c\n3,d\n"}, "id,v\n1,a\n2,b\n3,d\n", Counts{Fresh: 3, Duplicate: 1, Mismatch: 1}},
		{"CSV header names may hold quotes and commas", Options{Format: CSV, Keys: []string{`.["a, \"b\""]`}},
			[]string{"x,\"a, \"\"b\"\"\"\n1,2\n3,2\n"}, "x,\"a, \"\"b\"\"\"\n1,2\n", Counts{Fresh: 1, Duplicate: 1, Mismatch: 1}},
		{"CSV quotes are no part of a value", Options{Format: CSV, Keys: []string{".id"}},
			[]string{"id,v\n\"a\nb\",1\n\"x\"\"y\",2\nplain,3\n\"plain\",3\n\"a\nb\",4\n"}, "id,v\n\"a\nb\",1\n\"x\"\"y\",2\nplain,3\n", Counts{Fresh: 3, Duplicate: 2, Mismatch: 2}},
		{"CSV with carriage returns, a mark and no last line end", Options{Format: CSV, Keys: []string{".id"}},
			[]string{bom + "id,v\r\n1,\"a\r\nb\"\r\n1,x\r\n2,y"}, bom + "id,v\r\n1,\"a\r\nb\"\r\n2,y\n", Counts{Fresh: 2, Duplicate: 1, Mismatch: 1}},
		{"CSV skips blank lines", Options{Format: CSV, Keys: []string{".id"}},
			[]string{"id,v\n\n1,a\n\r\n1,a\n"}, "id,v\n1,a\n", Counts{Fresh: 1, Duplicate: 1, Blank: 2}},
		{"CSV with the whole record for a key", Options{Format: CSV},
			[]string{"a,b\n1,2\n1,\"2\"\n1,2\n"}, "a,b\n1,2\n1,\"2\"\n", Counts{Fresh: 2, Duplicate: 1}},
		{"CSV with content for a key", Options{Format: CSV, Keys: []string{"hash(.)"}},
			[]string{"a,b\n1,2\n1,\"2\"\n12,\n"}, "a,b\n1,2\n12,\n", Counts{Fresh: 2, Duplicate: 1}},
		{"CSV with all but some columns for a key", Options{Format: CSV, Keys: []string{"hash(. - .at - .[\"x y\"])"}},
			[]string{"x y,a,at,b\n1,2,3,4\n5,\"2\",6,4\n1,2,3,5\n"}, "x y,a,at,b\n1,2,3,4\n1,2,3,5\n", Counts{Fresh: 2, Duplicate: 1}},
		{"TSV without a header and all but a column for a key", Options{Format: TSV, NoHeader: true, Keys: []string{"hash(. - .2)"}},
			[]string{"a\tb\tc\na\tx\tc\na\tc\n"}, "a\tb\tc\na\tc\n", Counts{Fresh: 2, Duplicate: 1}},
		{"CSV with two columns for a key", Options{Format: CSV, Keys: []string{".a", `.["b c"]`}},
			[]string{"a,b c,d\nx,yz,1\nxy,z,1\nx,yz,1\n"}, "a,b c,d\nx,yz,1\nxy,z,1\n", Counts{Fresh: 2, Duplicate: 1}},
		{"CSV records that are too short or empty pass", Options{Format: CSV, Keys: []string{".b"}, OnMissing: MissingPass},
			[]string{"a,b\n1\n1,\n1,\"\"\n"}, "a,b\n1\n1,\n1,\"\"\n", Counts{Fresh: 3, Missing: 3}},
		{"CSV of which only the header is there", Options{Format: CSV, Keys: []string{".a"}},
			[]string{"a,b"}, "a,b\n", Counts{}},
		{"CSV after an empty file", Options{Format: CSV, Keys: []string{".a"}},
			[]string{"", "a,b\n1,2\n"}, "a,b\n1,2\n", Counts{Fresh: 1}},
		{"TSV", Options{Format: TSV, Keys: []string{".b"}},
			[]string{"a\tb\n1,1\tx\n2\tx\n"}, "a\tb\n1,1\tx\n", Counts{Fresh: 1, Duplicate: 1, Mismatch: 1}},
		{"CSV with another delimiter", Options{Format: CSV, Delimiter: ';', Keys: []string{".b"}},
			[]string{"a;b\n1,1;x\n\"2;\";x\n"}, "a;b\n1,1;x\n", Counts{Fresh: 1, Duplicate: 1, Mismatch: 1}},
		{"CSV without a header", Options{Format: CSV, NoHeader: true, Keys: []string{".2"}, OnMissing: MissingPass},
			[]string{bom + "id,v\n1,v\n2\n", "3,\"v\"\n"}, bom + "id,v\n2\n", Counts{Fresh: 2, Duplicate: 2, Mismatch: 2, Missing: 1}},
		{"TSV without a header, empty at first", Options{Format: TSV, NoHeader: true, Keys: []string{".1", ".2"}},
			[]string{"", "a\tb\n", "a\tb\tc\nb\ta"}, "a\tb\nb\ta\n", Counts{Fresh: 2, Duplicate: 1, Mismatch: 1}},
		{"nothing at all", jsonl(Options{}), []string{""}, "", Counts{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, store := range []bool{false, true} {
				for _, size := range []int{1, 7, 1 << 16} {
					b := setup(t)
					opts := test.opts
					opts.blockSize = size
					if store {
						opts.Store = b.path("store")
					}
					for i, text := range test.inputs {
						opts.Inputs = append(opts.Inputs, b.file(fmt.Sprint("in", i), text))
					}
					out, report := b.must(opts)
					b.equal("output", out, test.want)
					got := report.Counts
					want := test.counts
					want.Read = want.Fresh + want.Duplicate + want.Rejected
					want.BytesIn, want.BytesOut = int64(len(strings.Join(test.inputs, ""))), int64(len(out))
					if got != want {
						t.Fatalf("counts:\n got %+v\nwant %+v", got, want)
					}
				}
			}
		})
	}
}

func TestRunStopsAtALineWithoutAKeyAndNamesIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ format, text, where, why string }{
		{"jsonl", "{\"id\":1}\n\n{\"x\":1}\n", "in:3", ".id is missing"},
		{"jsonl", "{\"id\":null}\n", "in:1", ".id is null"},
		{"jsonl", "{\"id\":\"\"}\n", "in:1", ".id is empty"},
		{"jsonl", "{\"id\":[1]}\n", "in:1", ".id is an array, which is not an id (use hash(.id) for its content)"},
		{"jsonl", "{\"id\":1}\n{\"id\":2\n", "in:2", "not valid JSON"},
		{"jsonl", "{\"id\":1}\n" + bom + "{\"id\":2}\n", "in:2", "not valid JSON"},
		{"csv", "id,v\n1,\"a\nb\"\n,x\n", "in:4", ".id is empty"},
		{"csv", "v,id\n1\n", "in:2", ".id is missing"},
		{"csv", "id,v\n1,\"a\nb\n", "in:2", "not valid CSV"},
		{"csv", "id,v\n1,2\n\"x\"y,2\n", "in:3", "not valid CSV"},
	} {
		b := setup(t)
		in := b.file("in", test.text)
		_, _, err := b.run(t.Context(), Options{Inputs: []string{in}, Format: Format(test.format), Keys: []string{".id"}})
		var line *LineError
		if !errors.As(err, &line) {
			t.Errorf("%q: error %v", test.text, err)
			continue
		}
		for _, part := range []string{test.where + ": ", test.why, "--on-missing"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: error %q does not say %q", test.text, err, part)
			}
		}
		if strings.ContainsAny(err.Error(), "\n*") {
			t.Errorf("error %q is not one plain line", err)
		}
	}
}

func TestLinesUpToTheLimitAreRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	long := strings.Repeat("x", MaxLine)
	opts := Options{Format: Text, Inputs: []string{b.file("in", "a\n"+long+"\r\nb\n"+long)}}
	out, report := b.must(opts)
	if report.Fresh != 3 || report.Duplicate != 1 || len(out) != len("a\n")+MaxLine+len("\r\nb\n") {
		t.Fatalf("%+v", report)
	}
	for _, more := range []string{"x\n", "x\r\n", "xxx\nb\n", "x"} {
		opts.Inputs = []string{b.file("in", "a\n"+long+more)}
		out, _, err := b.run(t.Context(), opts)
		if err == nil || !strings.Contains(err.Error(), "in:2: the line is longer than 64 MiB") || out != "a\n" {
			t.Fatalf("%q: error %v, output of %d bytes", more, err, len(out))
		}
	}
	opts.Inputs = []string{b.file("in", "\n"+long+"\n")}
	if _, report := b.must(opts); report.Fresh != 2 {
		t.Fatalf("%+v", report)
	}
}
