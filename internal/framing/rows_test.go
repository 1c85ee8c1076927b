package framing

import (
	"bytes"
	"encoding/csv"
	"math"
	"slices"
	"strings"
	"testing"
)

// recordsOf divides data with the scanner, and lets the data grow by step
// bytes.
func recordsOf(data []byte, comma byte, step int) (ends []int, good []bool) {
	scanner := Rows{Comma: comma}
	for have := 0; have < len(data); {
		have = min(have+step, len(data))
		for {
			end, ok := scanner.Next(data[:have])
			if end < 0 {
				break
			}
			ends, good = append(ends, end), append(good, ok)
		}
	}
	return ends, good
}

// FuzzCSV compares the scanner with encoding/csv. If encoding/csv reads a
// record, the scanner must find the same end and the same fields.
func FuzzCSV(f *testing.F) {
	for _, seed := range []string{
		"a,b\n1,2\n", "a,\"b\nc\"\r\n1,\"\"\"\"\n", "\"a\"x,b\n", "a\"b,c\n", "\r\n\n,\n\"", "\"a\"\r,b\r\n", "a\r", "\"\"\r\n\"\r\n\"\r\n",
	} {
		f.Add([]byte(seed), byte(','), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, comma byte, step uint8) {
		switch comma {
		case '\t', ';', '|':
		default:
			comma = ','
		}
		ended := data
		if len(data) > 0 && data[len(data)-1] != '\n' {
			ended = append(bytes.Clone(data), '\n')
		}
		ends, good := recordsOf(ended, comma, len(ended)+1)
		growing, growingGood := recordsOf(ended, comma, int(step)+1)
		if !slices.Equal(ends, growing) || !slices.Equal(good, growingGood) {
			t.Fatalf("ends %v %v, but %v %v in steps of %d", ends, good, growing, growingGood, step+1)
		}
		reader := csv.NewReader(bytes.NewReader(data))
		reader.Comma, reader.FieldsPerRecord = rune(comma), -1
		start := 0
		for i, end := range ends {
			record := withoutLineEnd(ended[start:end])
			if start = end; len(record) == 0 {
				continue // encoding/csv leaves them out
			}
			want, err := reader.Read()
			if err != nil {
				return // encoding/csv accepts less
			}
			offset := reader.InputOffset()
			if int(min(offset, int64(end))) != min(end, len(data)) {
				t.Fatalf("record %q ends at %d, not %d", want, offset, end)
			}
			if !good[i] {
				t.Fatalf("record %q is called malformed", want)
			}
			fields, _ := AppendFields(nil, nil, record, comma, math.MaxInt)
			var got []string
			for _, field := range fields {
				got = append(got, strings.ReplaceAll(string(field), "\r", ""))
			}
			for k := range want { // encoding/csv unifies line ends inside fields; the scanner keeps the bytes
				want[k] = strings.ReplaceAll(want[k], "\r", "")
			}
			if !slices.Equal(got, want) {
				t.Fatalf("record %q has the fields %q, not %q", record, got, want)
			}
			if some, _ := AppendFields(nil, nil, record, comma, int(step)); !slices.EqualFunc(some, fields[:min(int(step), len(fields))], bytes.Equal) {
				t.Fatalf("record %q has the first fields %q, not those of %q", record, some, fields)
			}
		}
	})
}

func TestRecordsWithTextBehindAClosingQuoteAreMalformed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"\"a\",b\n": true, "\"a\"b,c\n": false, "a\"b,c\n": true, "\"a\" ,b\n": false,
		"\"a\"\r\n": true, "\"a\"\r,b\n": false, "x,\"a\"b\"c\",d\n": false, "\"\"\n": true,
	} {
		ends, good := recordsOf([]byte(text), ',', 1)
		if !slices.Equal(ends, []int{len(text)}) || good[0] != want {
			t.Errorf("%q: ends %v, well formed %v; wanted %v", text, ends, good, want)
		}
	}
}

func BenchmarkRecordScanner(b *testing.B) {
	for name, record := range map[string]string{
		"plain":  "4711,some text,2026-01-01T00:00:00Z,12.50,another field of text,x\n",
		"quoted": "4711,\"some, text\",2026-01-01T00:00:00Z,12.50,\"another \"\"field\"\" of text\",x\n",
	} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte(record), 10000)
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				scanner := Rows{Comma: ','}
				for {
					if end, _ := scanner.Next(data); end < 0 {
						break
					}
				}
			}
		})
	}
}

// withoutLineEnd returns a record without its line end.
func withoutLineEnd(record []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(record, []byte("\n")), []byte("\r"))
}
