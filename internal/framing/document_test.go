package framing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// documentsOf reads the documents of a stream that grows by step bytes. After each document it
// starts again behind it, as a reader does after a crash.
func documentsOf(data []byte, step int) (list []string, err error) {
	at, have := 0, 0
	for {
		inArray, _ := ArrayBefore(data[:at])
		d := Documents{InArray: inArray}
		doc, next, ok, err := d.Next(data[at:have], 0, have == len(data))
		switch {
		case err != nil:
			return list, err
		case ok:
			list = append(list, string(data[at+doc.Start:at+doc.End]))
			at += next
		case have == len(data):
			return list, nil
		default:
			have = min(have+step, len(data))
		}
	}
}

func TestDocumentsAreFoundInArraysAndBehindEachOther(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":1}{"a":2}`: `{"a":1} {"a":2}`, "[1,\n \"]\",[2,3] , {\"a\":[4]}]": `1 "]" [2,3] {"a":[4]}`, "[1][2]\n3 4": `1 2 3 4`, "{\n \"a\": \"\\\"}\"\n}\n": "{\n \"a\": \"\\\"}\"\n}",
		"[]": "", "": "", " \n": "", "\ufeff[1]\n\ufeff[2]": "1 2", "\x1e{\"a\":1}\n\x1e{\"a\":2}\n": `{"a":1} {"a":2}`, "[[1],[[2]]]": "[1] [[2]]", "null true": "null true", "[[],[]]": "[] []",
	} {
		for step := range 5 {
			if got, err := documentsOf([]byte(text), step+1); err != nil || strings.Join(got, " ") != want {
				t.Errorf("%q in steps of %d: %q, %v, want %q", text, step+1, got, err, want)
			}
		}
	}
}

func TestAMalformedStreamIsAnErrorWithItsPlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[1 2]`: "neither a comma", `{"a":1},{"a":2}`: `',' stands where`, `[1,2`: "has no end", `{"a":`: "the document has no end", `[1,,2]`: "',' stands", `[1,`: "has no end", `]`: "']' stands",
	} {
		if got, err := documentsOf([]byte(text), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

// FuzzDocuments compares the stream with encoding/json: the documents are the same, even if the
// data grows and the reader starts again behind each of them.
func FuzzDocuments(f *testing.F) {
	for _, text := range []string{`{"a":"\"}"}[1,[2]] 3`, "[ ] [\"]\"]", "[{},\n1e3]\"x\""} {
		f.Add([]byte(text), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		var want []string
		decoder := json.NewDecoder(bytes.NewReader(data))
		for {
			var value json.RawMessage
			if err := decoder.Decode(&value); err == io.EOF {
				break
			} else if err != nil {
				return
			}
			var elements []json.RawMessage
			if value[0] != '[' {
				want = append(want, string(value))
			} else if err := json.Unmarshal(value, &elements); err != nil {
				t.Fatal(err)
			}
			for _, element := range elements {
				want = append(want, string(element))
			}
		}
		got, err := documentsOf(data, int(step)+1)
		for _, document := range got {
			if !json.Valid([]byte(document)) {
				return // such as 00, which encoding/json reads as two documents
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", data, got, err, want)
		}
	})
}

func TestARowBecomesADocument(t *testing.T) {
	t.Parallel()
	names, err := Header([]byte(`id,"a ""b""",`), true, ',')
	if err != nil || !slices.Equal(names, []string{"id", `a "b"`, "3"}) {
		t.Fatalf("%q, %v", names, err)
	}
	for record, want := range map[string]string{
		`1,"x, ""y""` + "\n\x01\\\"": `{"id":"1","a \"b\"":"x, \"y\"\n\u0001\\"}`, "1": `{"id":"1"}`, ",\xff,\t": "{\"id\":\"\",\"a \\\"b\\\"\":\"\xff\",\"3\":\"\\t\"}",
	} {
		fields, _ := AppendFields(nil, nil, []byte(record), ',', 100)
		got, err := AppendDocument(nil, names, fields)
		if err != nil || string(got) != want || !json.Valid(got) {
			t.Errorf("%q: %s, %v, want %s", record, got, err, want)
		}
	}
	if _, err := AppendDocument(nil, names[:1], [][]byte{{'1'}, {'2'}}); err == nil || !strings.Contains(err.Error(), "2 columns, and the header 1") {
		t.Error(err)
	}
	for header, want := range map[string]string{"id,id": `two columns "id", 1 and 2`, "id;n": `';' may be what separates`, "id\r1\r2": "carriage return", "\"id": ""} {
		if _, err := Header([]byte(header), header != "\"id", ','); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", header, err)
		}
	}
}

// TestLinesAreTheDocumentsOfAStream reads the same streams in small pieces.
func TestLinesAreTheDocumentsOfAStream(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[{\"a\":1,\n \"b\":\"x\\\\\"},\n2]{}": "{\"a\":1,\"b\":\"x\\\\\"}\n2\n{}\n", "": "", "[ ]": "", "{\n\"a\" 1}3": "{ \"a\" 1}\n3\n",
	} {
		got, err := io.ReadAll(NewLines(iotest.OneByteReader(strings.NewReader(text)), 1<<20))
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"[1,\n2 3]": "1\n: neither a comma nor ] follows an element of the array at byte 6", `{"a":1} [`: "{\"a\":1}\n: the array has no end: the input was cut short at byte 9"} {
		for _, from := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			got, err := io.ReadAll(NewLines(from, 1<<20))
			if text := string(got) + ": " + fmt.Sprint(err); text != want {
				t.Errorf("%q, want %q", text, want)
			}
		}
	}
	if _, err := io.ReadAll(NewLines(strings.NewReader(`"`+strings.Repeat("x", 1<<20)), 1000)); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Error(err)
	}
}
