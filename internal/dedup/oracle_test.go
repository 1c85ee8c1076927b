package dedup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
)

// oracle is a deduplication that is easy to read. It decodes every line with
// encoding/json and keeps every key in a map. Keys are the member "id".
type oracle struct {
	onMissing  OnMissing
	onMismatch OnMismatch

	seen           map[string]any
	fresh          bytes.Buffer
	dups, rejected bytes.Buffer
	counts         Counts
	// failed is the line at which MissingFail stops, or 0.
	failed int64
}

// input decides the lines of one input and reports whether to continue.
func (o *oracle) input(data string) bool {
	for n := int64(1); data != ""; n++ {
		line, rest, ended := strings.Cut(data, "\n")
		written := line + "\n"
		o.counts.BytesIn += int64(len(line))
		if ended {
			o.counts.BytesIn++
		}
		data = rest
		if !o.line(strings.TrimSuffix(line, "\r"), written) {
			o.counts.BytesIn -= int64(len(written))
			if !ended {
				o.counts.BytesIn++
			}
			o.failed = n
			return false
		}
	}
	return true
}

func (o *oracle) line(line, written string) bool {
	if strings.Trim(line, " \t\r") == "" {
		o.counts.Blank++
		return true
	}
	id, content, ok := oracleKey(line)
	if !ok {
		switch o.onMissing {
		case MissingFail:
			return false
		case MissingReject:
			o.counts.Missing++
			o.reject(written)
			return true
		case MissingPass:
			o.counts.Missing++
			o.keep(written)
			return true
		}
		o.counts.Missing++
		id = "bytes " + line
		if content != nil {
			text, err := json.Marshal(content)
			if err != nil {
				panic(err)
			}
			id = "content " + string(text)
		}
	}
	first, known := o.seen[id]
	switch {
	case !known:
		o.seen[id] = content
		o.keep(written)
		return true
	case !ok || reflect.DeepEqual(first, content):
		o.drop(written)
		return true
	}
	o.counts.Mismatch++
	switch o.onMismatch {
	case MismatchReject:
		o.reject(written)
	case MismatchPass:
		o.keep(written)
	default:
		o.drop(written)
	}
	return true
}

func (o *oracle) keep(line string) {
	o.counts.Read++
	o.counts.Fresh++
	o.counts.BytesOut += int64(len(line))
	o.fresh.WriteString(line)
}

func (o *oracle) drop(line string) {
	o.counts.Read++
	o.counts.Duplicate++
	o.dups.WriteString(line)
}

func (o *oracle) reject(line string) {
	o.counts.Read++
	o.counts.Rejected++
	o.rejected.WriteString(line)
}

// oracleKey returns the member "id" with its type, and the document. The
// document is nil if the line is not JSON.
func oracleKey(line string) (id string, content any, ok bool) {
	if !json.Valid([]byte(line)) {
		return "", nil, false
	}
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		return "", nil, false
	}
	object, isObject := content.(map[string]any)
	if !isObject {
		return "", content, false
	}
	switch v := object["id"].(type) {
	case string:
		return "string " + v, content, v != ""
	case json.Number:
		return "number " + v.String(), content, true
	case bool:
		return fmt.Sprint("bool ", v), content, true
	}
	return "", content, false
}

// randomLines makes lines with shared ids, written in many ways.
func randomLines(r *rand.Rand, count, ids int, odd bool) string {
	var b strings.Builder
	for range count {
		b.WriteString(randomLine(r, ids, odd))
		if r.IntN(8) == 0 {
			b.WriteByte('\r')
		}
		b.WriteByte('\n')
	}
	text := b.String()
	if r.IntN(3) == 0 {
		text = strings.TrimSuffix(text, "\n")
	}
	return text
}

func randomLine(r *rand.Rand, ids int, odd bool) string {
	if odd {
		switch r.IntN(40) {
		case 0:
			return ""
		case 1:
			return " \t"
		case 2:
			return `{"id":`
		case 3:
			return `not json`
		case 4:
			return `{"other":1}`
		case 5:
			return `{"id":null}`
		case 6:
			return `{"id":"","n":` + fmt.Sprint(r.IntN(3)) + `}`
		case 7:
			return `{"id":{"a":1}}`
		case 8:
			return `[1,2]`
		}
	}
	id := r.IntN(ids)
	spelled := []string{
		fmt.Sprintf(`"%d"`, id), fmt.Sprint(id), fmt.Sprintf("%d.0", id), fmt.Sprintf(`"i\u006%d"`, id%10),
		fmt.Sprintf(`"i%c"`, rune(0x60+id%10)), fmt.Sprintf(`"a\"\\ü%d"`, id), "true", fmt.Sprintf(`"%s%d"`, strings.Repeat("x", r.IntN(3)*40), id),
	}[r.IntN(8)]
	members := []string{`"id":` + spelled}
	if r.IntN(2) == 0 {
		members = append(members, fmt.Sprintf(`"n":%d`, r.IntN(2)))
	}
	if r.IntN(2) == 0 {
		members = append(members, `"nested":{"id":"inner","list":[1,{"id":2}]}`)
	}
	if r.IntN(50) == 0 {
		members = append(members, `"long":"`+strings.Repeat("y", r.IntN(5000))+`"`)
	}
	r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	space := strings.Repeat(" ", r.IntN(2))
	return "{" + space + strings.Join(members, ","+space) + "}" + space
}
