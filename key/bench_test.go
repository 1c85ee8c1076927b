package key

import (
	"encoding/json"
	"testing"
)

// line is a JSON line of 200 bytes, like those of an event log.
const line = `{"event_id":"0c53b6c8-9a7e-4d0b-8f5e-2f1f6a3b9d11","type":"order.placed","user":{"id":1048576,"name":"Ada L."},"amount":129.95,"currency":"EUR","ok":true,"tags":["a","b"],"ts":"2026-02-01T10:11:12Z"}`

func BenchmarkFinder(b *testing.B) {
	doc := []byte(line)
	for _, bench := range []struct {
		name  string
		path  string
		print bool
	}{
		{"check", "", false},
		{"event_id", ".event_id", false},
		{"ts", ".ts", false},
		{"user.id", ".user.id", false},
		{"event_id+print", ".event_id", true},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var paths []string
			if bench.path != "" {
				paths = append(paths, bench.path)
			}
			f := mustFinder(b, &FinderOptions{Content: bench.print}, paths...)
			var id []byte
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Find(doc); err != nil {
					b.Fatal(err)
				}
				if paths != nil {
					id, _ = f.AppendID(id[:0])
				}
			}
		})
	}
}

func BenchmarkEncodingJSON(b *testing.B) {
	doc := []byte(line)
	b.Run("any", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			var v any
			if err := json.Unmarshal(doc, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("struct", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		b.ReportAllocs()
		for b.Loop() {
			var v struct {
				EventID string `json:"event_id"`
			}
			if err := json.Unmarshal(doc, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("valid", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		for b.Loop() {
			if !json.Valid(doc) {
				b.Fatal("not valid")
			}
		}
	})
}
