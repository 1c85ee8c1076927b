package file_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/klauspost/compress/gzip"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
)

const (
	csvText = "\ufeffid,note\r\n\r\n1,plain\r\n2,\"a \"\"quote\"\", and\r\na line\"\r\n3\n\n4,x,too many\n\"5\"y,z\n6,\xff\n\ufeffid,note\n7,\"\ufeff\"\n7\ufeff\n7,no end"
	tsvText = "id\tnote\n1\ta, b\n2\t\"x\ty\"\n"
	text    = "\ufeff[{\"id\":1},\n {\"id\":[2,\n {}]} ,[3]]\n" + `{"id":"4]"}{"id":5}` + "\n[ ]\x1e 6 \n[[7]]"
)

var (
	csvWant = []string{`{"id":"1","note":"plain"}`, `{"id":"2","note":"a \"quote\", and\r\na line"}`, `{"id":"3"}`, `!4,x,too many`, `!"5"y,z`, "{\"id\":\"6\",\"note\":\"\xff\"}", "!\ufeffid,note", "{\"id\":\"7\",\"note\":\"\ufeff\"}", "!7\ufeff", `{"id":"7","note":"no end"}`}
	tsvWant = []string{`{"id":"1","note":"a, b"}`, `{"id":"2","note":"x\ty"}`}
	want    = []string{`{"id":1}`, "{\"id\":[2,\n {}]}", `[3]`, `{"id":"4]"}`, `{"id":5}`, `6`, `[7]`}
)

// readAll returns the bodies of all records. Those that cannot be read begin with "!".
func (b *bundle) readAll(chunk int) (list []string, positions []int64) {
	b.Helper()
	b.Source = b.source(chunk)
	for _, it := range b.read() {
		body := string(it.Message.Body)
		if it.Err != nil {
			body = "!" + body
		}
		list, positions = append(list, body), append(positions, it.Message.Origin.Offset)
	}
	return list, positions
}

func (b *bundle) source(chunk int) *file.Source {
	b.Helper()
	source, err := file.OpenSource([]string{b.path("in*")}, file.InChunks(b.opts, chunk))
	if err != nil {
		b.Fatal(err)
	}
	return source
}

// TestRecordsAreReadFromEachPosition reads files in pieces of several sizes, acknowledges some
// records, and opens the files again. Each record comes, once, with the same position.
func TestRecordsAreReadFromEachPosition(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		format file.Format
		text   string
		want   []string
	}{{file.CSV, csvText, csvWant}, {file.TSV, tsvText, tsvWant}, {file.JSON, text, want}} {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, packed %v", test.format, packed), func(t *testing.T) {
				t.Parallel()
				content := test.text
				if packed {
					var data bytes.Buffer
					z := gzip.NewWriter(&data)
					if _, err := io.WriteString(z, content); err != nil {
						t.Fatal(err)
					}
					if err := z.Close(); err != nil {
						t.Fatal(err)
					}
					content = data.String()
				}
				for _, chunk := range []int{4, 16, 100_000} {
					b := setup(t, file.SourceOptions{Format: test.format})
					b.write("in", content)
					got, positions := b.readAll(chunk)
					b.close()
					if !slices.Equal(got, test.want) {
						t.Fatalf("in pieces of %d: %q, want %q", chunk, got, test.want)
					}
					for i, at := range positions {
						body := strings.TrimPrefix(test.want[i], "!")
						if test.format == file.JSON && !strings.HasPrefix(test.text[at:], body) || test.format == file.CSV && test.text[at-1] != '\n' {
							t.Errorf("record %d is not at byte %d", i, at)
						}
					}
					for settled := range len(got) {
						b := setup(t, file.SourceOptions{Format: test.format})
						b.write("in", content)
						b.Source = b.source(chunk)
						items := b.read()
						b.ack(items[:settled])
						b.close()
						rest, at := b.readAll(chunk)
						b.close()
						if !slices.Equal(rest, test.want[settled:]) || !slices.Equal(at, positions[settled:]) {
							t.Fatalf("in pieces of %d, after %d: %q at %d, want %q at %d", chunk, settled, rest, at, test.want[settled:], positions[settled:])
						}
					}
				}
			})
		}
	}
}

// TestRowsOfAFollowedFileComeWhenTheyAreWhole: a row waits for its line end, also inside quotes,
// and a file that was rotated has its own header.
func TestRowsOfAFollowedFileComeWhenTheyAreWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, file.SourceOptions{Format: file.CSV, Follow: true})
		b.write("in", "id,")
		b.open("in")
		b.wants()
		b.add("in", "n\n1,\"a\n")
		b.wants()
		b.add("in", "b\"\n2,c")
		b.wants(`{"id":"1","n":"a\nb"}`)
		b.close()
		b.add("in", "\n")
		b.open("in")
		b.wants(`{"id":"2","n":"c"}`)
		b.rename("in", "old")
		b.write("in", "m,id\n3,4\n")
		b.wants(`{"m":"3","id":"4"}`)
		b.write("in", "x\n1\n") // rewritten in place
		b.wants(`{"x":"1"}`)
		b.close()
	})
}

func TestAFileThatCannotBeDividedEndsTheSource(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		format     file.Format
		text, want string
	}{
		{file.CSV, "id,id\n1,2\n", `two columns "id"`},
		{file.CSV, "id;n\n1;2\n", `';' may be what separates`},
		{file.CSV, "id,n\r1,2\r", "carriage return"},
		{file.CSV, "\"id,n\n1,2\n", "no closing quote"},
		{file.CSV, "\ufeff\ufeffid,n\n1,2\n", "byte order mark"},
		{file.JSON, "[1,2", "byte 4: the array has no end"},
		{file.JSON, "{}\n1,2", "byte 4: ',' stands where"},
		{file.JSON, "PAR1\x15\x04", "Parquet"},
		{file.CSV, "PAR1\x15\x04\r\n", "Parquet"},
		{file.TSV, "Obj\x01\x04\n", "Avro"},
		{file.CSV, "PK\x03\x04\n", "zip"},
		{file.CSV, "\xff\xfei\x00d\x00,\x00n\x00\n\x00", "iconv -f UTF-16 -t UTF-8"},
		{file.JSON, "\xfe\xff\x00{\x00}", "iconv -f UTF-16 -t UTF-8"},
		{file.CSV, "i\x00d\x00,\x00n\x00\n\x00", "iconv -f UTF-16 -t UTF-8"},
		{file.CSV, "id\tn\n1\t2\n", "write format: tsv"},
		{file.TSV, "id,n\n1,2\n", "write format: csv"},
	} {
		b := setup(t, file.SourceOptions{Format: test.format})
		b.write("in", test.text)
		b.open("in")
		var err error
		for err == nil {
			_, err = b.Read(t.Context())
		}
		if err == io.EOF || semel.Classify(err) != semel.ClassPermanent || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), b.path("in")) {
			t.Errorf("%q: %v, want %q", test.text, err, test.want)
		}
		b.close()
	}
}
