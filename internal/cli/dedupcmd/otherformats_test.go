package dedupcmd_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestDedupNamesContentThatIsNotLinesOfJSON: what a person gets from a colleague is
// often packed, exported from a spreadsheet, or cut.
func TestDedupNamesContentThatIsNotLinesOfJSON(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	for i := range 20_000 {
		fmt.Fprintf(&lines, "{\"id\":%d,\"x\":\"%x\"}\n", i, i*7919)
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	if _, err := writer.Write(lines.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(packed.Bytes())
	broken[len(broken)/2] ^= 0xff
	tar := append(make([]byte, 257), "ustar\x00"...)
	dir := t.TempDir()
	for _, test := range []struct {
		name, content, want string
		status              int
	}{
		{"a.xz", "\xfd7zXZ\x00...", "a.xz: this is xz: write xz -dc %s | semel dedup and the flags\n", term.ExitUsage},
		{"a.bz2", "BZh91AY&SY...", "this is bzip2: write bzip2 -dc %s | semel dedup", term.ExitUsage},
		{"a.zip", "PK\x03\x04...", "this is a zip archive: write unzip -p %s | semel dedup", term.ExitUsage},
		{"a.tar", string(tar), "this is a tar archive: write tar -xOf %s | semel dedup", term.ExitUsage},
		{"a.jsonl", "\xff\xfe{\x00", "this is UTF-16: write iconv -f UTF-16 -t UTF-8 %s | semel dedup", term.ExitUsage},
		{"a.csv", "PAR1\x15\x04\r\x15\r", "this is Parquet, which Semel does not read: convert it to JSON lines or CSV", term.ExitUsage},
		{"b.csv", "Obj\x01\x04\r\x15\r", "this is Avro, which Semel does not read", term.ExitUsage},
		{"c.csv", "i\x00d\x00\n\x00", "this is in UTF-16, and Semel reads UTF-8: convert it with iconv", term.ExitUsage},
		{"behind.jsonl.gz", packed.String() + "x", ":20001: other bytes are behind the end of the gzip data: pass the input through gzip -dc", term.ExitFailed},
		{"cut.jsonl.gz", packed.String() + packed.String()[:5], ":20001: the gzip data ends early: get the whole file", term.ExitFailed},
		{"broken.jsonl.gz", string(broken), "the gzip data is damaged", term.ExitFailed},
	} {
		path := programtest.WriteFile(t, filepath.Join(dir, test.name), test.content)
		if bytes.Contains([]byte(test.want), []byte("%s")) {
			test.want = fmt.Sprintf(test.want, path)
		}
		programtest.Run(t, "", "dedup", "--quiet", "--key", ".id", path, "-o", path+".out").Check(t, test.status, test.want)
	}
	programtest.Run(t, "PK\x03\x04...", "dedup", "--key", ".id").Check(t, term.ExitUsage, "standard input: this is a zip archive: pass it through unzip -p first")
	programtest.Run(t, "id,name,amount\n1,a,2\n", "dedup", "--key", ".id").Check(t, term.ExitFailed, "line 1 looks like CSV (id,name,amount): add --format csv\n")
	programtest.Run(t, "id;name\n1;a\n", "dedup", "--key", ".id").Check(t, term.ExitFailed, "line 1 looks like CSV (id,name): add --format csv --delimiter ';'\n")
	rows := programtest.WriteFile(t, filepath.Join(dir, "rows"), "id;name\n1;a\n")
	programtest.Run(t, "", "dedup", "--key", ".id", "--format", "json", rows).Check(t, term.ExitUsage, "line 1 looks like CSV (id,name): write --format csv --delimiter ';'\n")
	programtest.Run(t, "hello\n", "dedup", "--key", ".id").Check(t, term.ExitFailed, "fix the line, or choose --on-missing")
}
