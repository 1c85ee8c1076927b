package key

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

// benchLines returns JSON lines of about 200 bytes, like those of an event log.
// Values and their lengths vary. In shuffled lines of every 100 the members
// come in random order.
func benchLines(shuffled int) [][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	types := []string{"order.placed", "order.paid", "order.shipped", "refund", "login"}
	names := []string{"Ada L.", "Grace Hopper", "Edsger", "Barbara Liskov", "N. Wirth", "Al"}
	lines := make([][]byte, 1000)
	for i := range lines {
		members := []string{
			`"event_id":"` + newUUIDv4().String() + `"`,
			`"type":"` + types[random.IntN(len(types))] + `"`,
			fmt.Sprintf(`"user":{"id":%d,"name":"%s"}`, random.IntN(1<<random.IntN(30)), names[random.IntN(len(names))]),
			fmt.Sprintf(`"amount":%.2f`, random.ExpFloat64()*100),
			`"currency":"EUR"`,
			fmt.Sprintf(`"ok":%v`, random.IntN(4) > 0),
			`"tags":["a","b"]`,
			fmt.Sprintf(`"ts":"2026-02-01T%02d:%02d:12Z"`, random.IntN(24), random.IntN(60)),
		}
		if random.IntN(100) < shuffled {
			random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		}
		lines[i] = []byte("{" + strings.Join(members, ",") + "}")
	}
	return lines
}

// perLine calls f with one line after the other and reports the time of each.
func perLine(b *testing.B, lines [][]byte, f func(line []byte) error) {
	b.Helper()
	b.ReportAllocs()
	size := 0
	for _, line := range lines {
		size += len(line)
	}
	b.SetBytes(int64(size / len(lines)))
	for i := 0; b.Loop(); i++ {
		if err := f(lines[i%len(lines)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFinder(b *testing.B) {
	for _, bench := range []struct {
		name     string
		paths    []string
		print    bool
		shuffled int
	}{
		{"check", nil, false, 0},
		{"first", []string{".event_id"}, false, 0},
		{"last", []string{".ts"}, false, 0},
		{"nested", []string{".user.id"}, false, 0},
		{"two", []string{".event_id", ".user.id"}, false, 0},
		{"print", []string{".event_id"}, true, 0},
		{"shuffled", []string{".event_id"}, false, 100},
		{"shuffled+print", []string{".event_id"}, true, 100},
	} {
		b.Run(bench.name, func(b *testing.B) {
			f := mustFinder(b, &FinderOptions{Content: bench.print}, bench.paths...)
			var id []byte
			perLine(b, benchLines(bench.shuffled), func(line []byte) error {
				err := f.Find(line)
				if err == nil && bench.paths != nil {
					id, err = f.AppendID(id[:0])
				}
				return err
			})
		})
	}
}

func BenchmarkReader(b *testing.B) {
	for _, text := range []string{".event_id", "hash(.)", "hash(.user,.amount)"} {
		b.Run(text, func(b *testing.B) {
			rule, err := ParseRule(text)
			if err != nil {
				b.Fatal(err)
			}
			x := rule.Reader(nil)
			var id []byte
			var m semel.Message
			perLine(b, benchLines(0), func(line []byte) error {
				m.Body = line
				id, err = x.AppendID(id[:0], &m)
				return err
			})
		})
	}
}

// BenchmarkEncodingJSON is the comparison for BenchmarkFinder.
func BenchmarkEncodingJSON(b *testing.B) {
	lines := benchLines(0)
	b.Run("any", func(b *testing.B) {
		perLine(b, lines, func(line []byte) error {
			var v any
			return json.Unmarshal(line, &v)
		})
	})
	b.Run("struct", func(b *testing.B) {
		perLine(b, lines, func(line []byte) error {
			var v struct {
				EventID string `json:"event_id"`
			}
			return json.Unmarshal(line, &v)
		})
	})
	b.Run("valid", func(b *testing.B) {
		perLine(b, lines, func(line []byte) error {
			if !json.Valid(line) {
				return ErrSyntax
			}
			return nil
		})
	})
}
