package programtest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

// WriteFile writes a file and returns its name.
func WriteFile(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// WriteProgram writes a file that can be executed. Meanwhile this process starts no other one: a
// child that has not yet become its program has the file open, and nobody could execute it.
func WriteProgram(t *testing.T, path, content string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// AppendFile writes a text to the end of a file that a program reads.
func AppendFile(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ReadFile returns the content of a file.
func ReadFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Gzip compresses a text.
func Gzip(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// JSONLines decodes a JSON object from each line.
func JSONLines(t *testing.T, stdout string) []map[string]any {
	t.Helper()
	var list []map[string]any
	for line := range strings.Lines(stdout) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%v in line %q", err, line)
		}
		list = append(list, record)
	}
	return list
}
