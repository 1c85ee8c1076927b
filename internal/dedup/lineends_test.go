package dedup

import (
	"errors"
	"strings"
	"testing"
)

// TestLinesThatEndWithCRAloneAreRefusedByName: such a file would be one line, and all of
// its duplicates would pass.
func TestLinesThatEndWithCRAloneAreRefusedByName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file, text string
		opts       Options
		ok         bool
	}{
		"CSV":                           {"a.csv", "id,n\r1,a\r1,b\r", Options{Keys: []string{".id"}}, false},
		"CSV with a byte order mark":    {"a.csv", "\ufeffid,n\r1,a\r1,b\r", Options{Keys: []string{".id"}}, false},
		"CSV without a header":          {"a.csv", "1,a\r1,b\r", Options{Keys: []string{".1"}, NoHeader: true}, false},
		"CSV with line feeds in quotes": {"a.csv", "id,n\r1,\"a\nb\"\r1,b\r", Options{Keys: []string{".id"}}, false},
		"CSV whose header ends with CR": {"a.csv", "id,n\r1,a\n1,b\n", Options{Keys: []string{".id"}}, false},
		"CSV with a CR between records": {"a.csv", "id,n\n1,a\r2,b\n1,b\n", Options{Keys: []string{".id"}}, false},
		"CSV with a CR in quotes":       {"a.csv", "id,n\n1,\"a\r\"\"b\"\n1,b\n", Options{Keys: []string{".id"}}, true},
		"text":                          {"a.txt", "a\rb\ra", Options{}, false},
		"text, by its flag":             {"a", "a\rb\ra\r", Options{Format: Text}, false},
		"JSON":                          {"a.jsonl", "{\"id\":1}\r{\"id\":1}\r", Options{Keys: []string{".id"}}, false},
		"long text":                     {"a.txt", strings.Repeat("a\r", 1<<17), Options{}, false},
		"text with CRLF":                {"a.txt", "a\r\nb\r\na\r\n", Options{}, true},
		"one line with its CR":          {"a.txt", "a\r", Options{}, true},
		"text with a CR within":         {"a.txt", "10 %\r20 %\nb\n", Options{}, true},
	} {
		for _, from := range []string{"file", "standard input"} {
			t.Run(name+" from "+from, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				opts := c.opts
				if from == "file" {
					opts.Inputs = []string{b.file(c.file, c.text)}
				} else {
					opts.Inputs, opts.Stdin = []string{Stdio}, strings.NewReader(c.text)
					if opts.Format == "" && strings.HasSuffix(c.file, ".csv") {
						opts.Format = CSV
					}
				}
				out, _, err := b.run(t.Context(), opts)
				if c.ok {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				var refused *RefusedError
				var line *LineError
				if !errors.As(err, &refused) && !errors.As(err, &line) || !strings.Contains(err.Error(), "carriage return (CR)") || !strings.Contains(err.Error(), `tr '\r' '\n'`) {
					t.Fatalf("error %v", err)
				}
				if strings.Contains(out, "1,b") {
					t.Errorf("a duplicate passed: %q", out)
				}
			})
		}
	}
}

func TestARefusedHeaderNamesTheRemedy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"id,n,id\n1,a,2\n":          "--no-header and write --key .1 or .3",
		"sep=;\nid;n\n1;a\n":        "pass the input through tail -n +2 and add --delimiter ';'",
		"\"sep=\t\"\r\nid\tn\r\n":   "pass the input through tail -n +2 and add --delimiter tab",
		"\ufeffsep=,\r\nid,n\r\n1,": "pass the input through tail -n +2 and add --delimiter ,",
	} {
		b := setup(t)
		_, _, err := b.run(t.Context(), Options{Inputs: []string{b.file("a.csv", text)}, Keys: []string{".id"}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestAByteOrderMarkBetweenRecordsIsRefused: the values behind it would be new ones.
func TestAByteOrderMarkBetweenRecordsIsRefused(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"\ufeffid,n\n1,a\n\ufeffid,n\n1,a\n":          false,
		"\ufeffid,n\n1,a\n\ufeff1,a\n":                false,
		"\ufeffid,n\n1,a\n\ufeff\"1\",a\n":            false,
		"\ufeffid,n\n1,a\ufeffid,n\n1,a\n":            false, // the first file has no last line end
		"\ufeff\ufeffid,n\n1,a\n":                     false,
		"\ufeffid,n\n1,\"a\ufeff\"\n1,a\n":            true,
		"\ufeffid,n\n1,\uff21\n2,\uffff\uff21\n1,a\n": true,
	} {
		b := setup(t)
		out, _, err := b.run(t.Context(), Options{Inputs: []string{b.file("a.csv", text)}, Keys: []string{".id"}})
		if ok {
			if err != nil || strings.Contains(out, "1,a\n") {
				t.Errorf("%q: %q, %v", text, out, err)
			}
			continue
		}
		var refused *RefusedError
		var line *LineError
		if !errors.As(err, &refused) && !errors.As(err, &line) || !strings.Contains(err.Error(), "byte order mark") || !strings.Contains(err.Error(), `sed 's/\xEF\xBB\xBF//g'`) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
