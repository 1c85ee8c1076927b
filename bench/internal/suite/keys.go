package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tidwall/gjson"

	"github.com/semel-dev/semel/bench/internal/lines"
	"github.com/semel-dev/semel/key"
)

// keys lists the benchmarks that find the key in a line.
func keys(e Env) []Benchmark {
	const name = "github.com/tidwall/gjson"
	span := time.Duration(e.size(2000, 100)) * time.Millisecond
	find := func() (finder, error) {
		path, err := key.ParsePath(".event_id")
		if err != nil {
			return nil, err
		}
		finder, err := key.NewFinder([]key.Path{path}, nil)
		if err != nil {
			return nil, err
		}
		var id []byte
		return func(line []byte) (found, error) {
			if err := finder.Find(line); err != nil {
				return found{}, err
			}
			id, err = finder.AppendID(id[:0])
			return found{bytes: id}, err
		}, nil
	}
	var list []Benchmark
	for _, p := range []struct {
		name, work  string
		peerVersion func() (string, error)
		target      float64
		find        finder
	}{
		{"key-json", "encoding/json: Unmarshal into a struct with this field. It checks the line and uses the last of equal names", standard("encoding/json"), 5, findByDecoding},
		{"key-gjson", "gjson: ValidBytes, then GetBytes, which uses the first of equal names", linked(name), 1.3, findByGJSON},
		{"key-gjson-unchecked", "gjson: GetBytes alone. It checks nothing and stops at the name", linked(name), 1.3, findByGJSONUnchecked},
	} {
		list = append(list, Benchmark{
			Name:        p.name,
			Work:        fmt.Sprintf("find event_id in JSON lines of about 200 bytes, on one core, for %v; ours checks the whole line. Peer: %s", span, p.work),
			peerVersion: p.peerVersion,
			procs:       1,
			ours: func(context.Context) (map[string]float64, error) {
				find, err := find()
				if err != nil {
					return nil, err
				}
				return extract(p.name, span, find)
			},
			peer:    func(context.Context) (map[string]float64, error) { return extract(p.name, span, p.find) },
			figures: []figure{{name: p.name, unit: "lines/s", target: p.target}},
		})
	}
	return list
}

// finder finds the id in a line.
type finder func(line []byte) (found, error)

// found is an id in the form that its finder returns, so that no finder pays for a
// conversion.
type found struct {
	text  string
	bytes []byte
}

func findByDecoding(line []byte) (found, error) {
	var doc struct {
		ID string `json:"event_id"`
	}
	err := json.Unmarshal(line, &doc)
	return found{text: doc.ID}, err
}

func findByGJSON(line []byte) (found, error) {
	if !gjson.ValidBytes(line) {
		return found{}, fmt.Errorf("%q is not JSON", line)
	}
	return findByGJSONUnchecked(line)
}

func findByGJSONUnchecked(line []byte) (found, error) {
	return found{text: gjson.GetBytes(line, "event_id").Str}, nil
}

// extract finds the ids of some thousand lines repeatedly.
func extract(name string, span time.Duration, find finder) (map[string]float64, error) {
	var input bytes.Buffer
	if _, err := lines.Generate(&input, inputSeed, 5000); err != nil {
		return nil, err
	}
	all := bytes.SplitAfter(input.Bytes(), []byte("\n"))
	all = all[:len(all)-1]
	for _, line := range all {
		want, _ := lines.EventID(line)
		got, err := find(line)
		if err != nil {
			return nil, err
		}
		if got.text+string(got.bytes) != string(want) {
			return nil, fmt.Errorf("the id of %q is called %q", line, got.text+string(got.bytes))
		}
	}
	done := 0
	start := time.Now()
	for time.Since(start) < span {
		for _, line := range all {
			if _, err := find(line); err != nil {
				return nil, err
			}
		}
		done += len(all)
	}
	return map[string]float64{name: float64(done) / time.Since(start).Seconds()}, nil
}
