package dedup

import (
	"strings"
	"testing"
)

func TestLineWithoutAKeyDoesNotCollideWithAHashedKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		opts       Options
	}{
		{"JSON line and member", linesOf(`{"x":1}`, `{"a":{"x":1}}`), Options{Format: JSONL, Keys: []string{"hash(.a)"}}},
		{"JSON line and composite of members", linesOf(`["x","y"]`, `{"a":"x","b":"y"}`), Options{Format: JSONL, Keys: []string{"hash(.a,.b)"}}},
		{"bytes that are no JSON and a string", linesOf(`x`, `"x"`, `{"id":"x"}`), Options{Format: JSONL, Keys: []string{".id"}}},
		{"CSV record and field", "c1,c2\nx\ny,x\n", Options{Format: CSV, Keys: []string{"hash(.c2)"}}},
		{"CSV record that is not well formed and fields", "c1\n\x05,\"a\"b\n\",\"\"a\"\"b\"\n", Options{Format: CSV, Keys: []string{"hash(.)"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			test.opts.OnMissing = MissingHash
			test.opts.Inputs = []string{b.file("in", test.text)}
			out, _ := b.must(test.opts)
			b.equal("output", out, test.text)
		})
	}
}

func TestContentOfALineIsHashedWithoutAllocation(t *testing.T) {
	for _, test := range []struct {
		name, line string
		opts       Options
	}{
		{"path", `{"x":{"b":[1,"\u0061"],"a":true}}`, Options{Format: JSONL, Keys: []string{".id"}}},
		{"hash", `{"x":{"b":[1,"\u0061"],"a":true}}`, Options{Format: JSONL, Keys: []string{"hash(.id)"}}},
		{"CSV", `x,`, Options{Format: CSV, Keys: []string{".id"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := setup(t)
			test.opts.OnMissing = MissingHash
			test.opts.Inputs = []string{b.file("in", "a,id\n")}
			run, err := Prepare(t.Context(), &test.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer run.Close()
			w, err := newWorker(run.extract)
			if err != nil {
				t.Fatal(err)
			}
			const lines = 100
			block := newBlock(1 << 16)
			text := strings.Repeat(test.line+"\n", lines)
			parse := func() {
				block.reset()
				block.data = append(block.data, text...)
				cut := cutter{comma: run.extract.comma, block: block}
				cut.last(block.data)
				w.parse(block)
			}
			parse()
			if block.hashed != lines {
				t.Fatalf("%d of %d lines were hashed", block.hashed, lines)
			}
			if n := testing.AllocsPerRun(10, parse); n > lines/10 {
				t.Errorf("%v allocations for %d lines", n, lines)
			}
		})
	}
}
