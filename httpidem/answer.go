package httpidem

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// answer is a kept response.
type answer struct {
	status int
	// at is when the response was complete, and until when it is no longer kept, by the
	// clock of the process, to a second. A zero until means that it is kept forever.
	at, until time.Time
	// lost: the request took effect, but its response was too large to keep, was a
	// stream, was broken, or had trailers. What follows is not set. Of the answer to a call
	// of a tool, the JSON-RPC response is kept, without its id.
	lost   bool
	origin string // the Origin of the request
	header []line // those that may be replayed, by name
	body   []byte
}

// line is a line of a header.
type line struct{ name, value string }

// size returns the length of the header and how many bytes it has in an HTTP response.
func size(header []line) (n int) {
	for _, l := range header {
		n += len(l.name) + len(l.value) + 8
	}
	return n
}

// Forms of a stored answer. The first byte says which one it is. Form 1 had no times. An
// encrypted answer has a nonce, and then another form, encrypted.
const (
	formLost      byte = 2
	formWhole     byte = 3
	formEncrypted byte = 4
)

// encrypt encrypts a stored answer for its key, if the options say so: then it cannot be
// taken for that of another key.
func (o *Options) encrypt(data []byte, key semel.Key) []byte {
	if o.Encryption == nil {
		return data
	}
	head := 1 + o.Encryption.NonceSize()
	out := make([]byte, head, head+len(data)+o.Encryption.Overhead())
	out[0] = formEncrypted
	rand.Read(out[1:])
	return o.Encryption.Seal(out, out[1:], data, []byte(key.ID))
}

// decrypt returns what encrypt got. If that cannot be found out, it returns data.
func (o *Options) decrypt(data []byte, key semel.Key) []byte {
	if o.Encryption == nil || len(data) == 0 || data[0] != formEncrypted {
		return data
	}
	head := 1 + o.Encryption.NonceSize()
	if len(data) < head {
		return data
	}
	plain, err := o.Encryption.Open(nil, data[1:head], data[head:], []byte(key.ID))
	if err != nil {
		return data
	}
	return plain
}

// encode returns the stored form: the form byte; the status; at and until in seconds since
// 1970, 0 for forever; the origin; the number of header lines; name and value of each; the
// body. Numbers are varints. Texts but the body have their lengths before them. A lost
// answer ends after the times. Equal answers have equal forms.
func (a *answer) encode() []byte {
	form, until := formWhole, uint64(0)
	if a.lost {
		form = formLost
	}
	if !a.until.IsZero() {
		until = uint64(a.until.Unix())
	}
	const numbers = 64 // bytes for all numbers but the lengths in header
	out := append(make([]byte, 0, numbers+len(a.origin)+size(a.header)+len(a.body)), form)
	out = binary.AppendUvarint(out, uint64(a.status))
	out = binary.AppendUvarint(out, uint64(a.at.Unix()))
	out = binary.AppendUvarint(out, until)
	if a.lost {
		return out
	}
	out = appendText(out, a.origin)
	out = binary.AppendUvarint(out, uint64(len(a.header)))
	for _, l := range a.header {
		out = appendText(appendText(out, l.name), l.value)
	}
	return append(out, a.body...)
}

func appendText(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

var errForm = errors.New("httpidem: a stored answer is damaged, or was written by another version")

// scanner reads a stored answer. After an error, bad is set, and all else is zero.
type scanner struct {
	data []byte
	bad  bool
}

func (s *scanner) number(most uint64) uint64 {
	n, size := binary.Uvarint(s.data)
	if size <= 0 || n > most {
		s.bad, s.data = true, nil
		return 0
	}
	s.data = s.data[size:]
	return n
}

func (s *scanner) text() string {
	n := s.number(uint64(len(s.data)))
	if n > uint64(len(s.data)) {
		s.bad, s.data = true, nil
		return ""
	}
	text := string(s.data[:n])
	s.data = s.data[n:]
	return text
}

// decode reads a stored answer. The body shares memory with data.
func decode(data []byte) (*answer, error) {
	if len(data) == 0 || data[0] != formWhole && data[0] != formLost {
		return nil, errForm
	}
	const year9999 = 253402300799
	s := scanner{data: data[1:]}
	a := &answer{lost: data[0] == formLost, status: int(s.number(999)), at: time.Unix(int64(s.number(year9999)), 0)}
	if until := s.number(year9999); until > 0 {
		a.until = time.Unix(int64(until), 0)
	}
	if s.bad || a.status < 200 || a.lost && len(s.data) > 0 {
		return nil, fmt.Errorf("%w: status %d", errForm, a.status)
	}
	if a.lost {
		return a, nil
	}
	a.origin = s.text()
	for range s.number(uint64(len(s.data))) {
		a.header = append(a.header, line{s.text(), s.text()})
	}
	if s.bad {
		return nil, errForm
	}
	a.body = s.data
	return a, nil
}

// Headers of replays.
const (
	// Replayed marks a kept answer. Its value is true. [Profile.Marker] renames it.
	Replayed = "Idempotent-Replayed"
	// Executed is when the first request was answered, as an HTTP date.
	Executed = "Idempotent-Executed"
	// Expires is when the answer, and with it the key, is forgotten, as an HTTP date. A
	// key that is kept forever has none.
	Expires = "Idempotent-Expires"
)

// replay answers with a kept answer.
func replay(w http.ResponseWriter, r *http.Request, p *Profile, data []byte) {
	a, err := decode(data)
	if err != nil {
		detail := "The request took effect. Its answer was kept by another version of this service, or encrypted with another key."
		if len(data) == 0 {
			detail = "The request took effect, as an operator found out. Its answer is not known."
		}
		(&refusal{problem: ResponseNotKept, detail: detail}).write(w, p)
		return
	}
	if a.lost {
		(&refusal{problem: ResponseNotKept, detail: fmt.Sprintf("The request took effect and was answered with status %d. That answer was too large to keep, or was a stream.", a.status)}).write(w, p)
		return
	}
	if c := callOf(w); c != nil {
		a.body = c.body(a)
	}
	h := w.Header()
	readable := a.readable(r.Header.Get("Origin"), h)
	for i, l := range a.header {
		switch {
		case !readable && strings.HasPrefix(l.name, "Access-Control-"):
		case i > 0 && a.header[i-1].name == l.name:
			h[l.name] = append(h[l.name], l.value)
		default:
			h[l.name] = []string{l.value}
		}
	}
	a.retryAfter(h, time.Now())
	h[p.Marker] = []string{"true"}
	h[Executed] = []string{a.at.UTC().Format(http.TimeFormat)}
	expose(h, p.Marker, Executed, Expires)
	if !a.until.IsZero() {
		h[Expires] = []string{a.until.UTC().Format(http.TimeFormat)}
	}
	p.accepted(h, true)
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // net/http would guess one
	}
	w.WriteHeader(a.status)
	a.send(w)
}

const (
	// stalled is how long a client may take for a piece of a kept answer. The answer takes
	// memory until the client has it.
	stalled = 30 * time.Second
	piece   = 64 << 10
)

// send sends the body. It gives up if the client has left, or takes too long for a piece.
func (a *answer) send(w http.ResponseWriter) {
	if len(a.body) <= piece { // the memory of its connection holds it
		_, _ = w.Write(a.body) // the client may have left
		return
	}
	control := http.NewResponseController(w)
	for rest := a.body; len(rest) > 0; {
		n := min(len(rest), piece)
		limited := control.SetWriteDeadline(time.Now().Add(stalled)) == nil
		_, err := w.Write(rest[:n])
		if rest = rest[n:]; len(rest) == 0 && err == nil {
			err = control.Flush()
		}
		if limited && err == nil {
			err = control.SetWriteDeadline(time.Time{})
		}
		if err != nil {
			return
		}
	}
}

// notKept answers for a request whose answer the store did not keep.
func notKept(w http.ResponseWriter, p *Profile) {
	(&refusal{problem: ResponseNotKept, detail: "The request took effect. Its answer was too large to keep."}).write(w, p)
}

// readable reports whether the kept headers of CORS are for a script of this origin. A
// handler in front may have set its own.
func (a *answer) readable(origin string, front http.Header) bool {
	return front["Access-Control-Allow-Origin"] == nil && (origin == a.origin || slices.Contains(a.header, line{"Access-Control-Allow-Origin", "*"}))
}

// retryAfter corrects a Retry-After: the time since the answer has passed.
func (a *answer) retryAfter(h http.Header, now time.Time) {
	value := h.Get("Retry-After")
	if value == "" {
		return
	}
	end, err := http.ParseTime(value)
	if seconds, notNumber := strconv.Atoi(value); notNumber == nil {
		end, err = a.at.Add(time.Duration(seconds)*time.Second), nil
	}
	if err != nil || !end.After(now) {
		h.Del("Retry-After")
		return
	}
	h.Set("Retry-After", strconv.Itoa(int(end.Sub(now).Seconds())+1))
}
