package httpidem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// answer is a kept response.
type answer struct {
	status int
	header http.Header // those that may be replayed
	body   []byte
	// lost: the request took effect, but its response was too large to keep, or had
	// trailers. status and the rest are not set.
	lost bool
}

// Forms of a stored answer. The first byte says which one it is.
const (
	formWhole byte = 1
	formLost  byte = 2
)

// encode returns the stored form: the form byte; the status; the number of header lines;
// name and value of each, with their lengths before them; the body. Numbers are varints.
// Equal answers have equal forms.
func (a *answer) encode() []byte {
	if a.lost {
		return []byte{formLost}
	}
	lines := 0
	for _, values := range a.header {
		lines += len(values)
	}
	out := binary.AppendUvarint([]byte{formWhole}, uint64(a.status))
	out = binary.AppendUvarint(out, uint64(lines))
	for _, name := range slices.Sorted(maps.Keys(a.header)) {
		for _, value := range a.header[name] {
			for _, text := range []string{name, value} {
				out = binary.AppendUvarint(out, uint64(len(text)))
				out = append(out, text...)
			}
		}
	}
	return append(out, a.body...)
}

var errForm = errors.New("httpidem: a stored answer is damaged, or was written by a newer version")

// decode reads a stored answer. The body shares memory with data.
func decode(data []byte) (*answer, error) {
	if len(data) == 0 || data[0] != formWhole && data[0] != formLost {
		return nil, errForm
	}
	if data[0] == formLost {
		if len(data) > 1 {
			return nil, errForm
		}
		return &answer{lost: true}, nil
	}
	data = data[1:]
	number := func() (uint64, bool) {
		n, size := binary.Uvarint(data)
		if size <= 0 {
			return 0, false
		}
		data = data[size:]
		return n, true
	}
	text := func() (string, bool) {
		n, ok := number()
		if !ok || n > uint64(len(data)) {
			return "", false
		}
		s := string(data[:n])
		data = data[n:]
		return s, true
	}
	status, ok := number()
	lines, more := number()
	if !ok || !more || status < 200 || status > 999 {
		return nil, fmt.Errorf("%w: status %d", errForm, status)
	}
	a := &answer{status: int(status), header: http.Header{}}
	for range lines {
		name, ok := text()
		value, more := text()
		if !ok || !more {
			return nil, errForm
		}
		a.header[name] = append(a.header[name], value)
	}
	a.body = data
	return a, nil
}
