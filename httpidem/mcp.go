package httpidem

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/semel-dev/semel/internal/jsontext"
	"github.com/semel-dev/semel/key"
)

// metaKey is the member of params._meta that has the key of a call. The client in
// clients/typescript uses the same name.
const metaKey = "/params/_meta/idempotencyKey"

// varying are the members of a call that differ between its repetitions. In a round trip
// for more input (revision 2026-07-28), the client sends the call again with the last two.
func varying() []string {
	return []string{"/id", "/params/_meta", "/params/requestState", "/params/inputResponses"}
}

// toolCall is the content of a request tools/call. Its texts share memory with the body.
type toolCall struct {
	whole     []byte // the message
	id        []byte // as it is written; nil if it is neither a string nor a number
	tool      string
	arguments []byte // nil if the call has no arguments
}

// readCalls returns the calls in a body, and whether it is a batch of messages. A name that
// comes twice is an error: the service might take the other one.
func readCalls(body []byte) (calls []*toolCall, batch bool, err error) {
	if !json.Valid(body) {
		return nil, false, errNotJSON
	}
	value := jsontext.Trim(body)
	messages := [][]byte{value}
	if batch = value[0] == '['; batch {
		messages = nil
		for _, element := range children(value) {
			messages = append(messages, element)
		}
	}
	for _, one := range messages {
		c, err := readCall(one)
		if err != nil {
			return nil, batch, err
		}
		if c != nil {
			calls = append(calls, c)
		}
	}
	return calls, batch, nil
}

// readCall returns the call in a message, or nil for another message.
func readCall(value []byte) (*toolCall, error) {
	var wrong error
	at := func(path ...string) []byte {
		found, err := valueBelow(value, path)
		wrong = cmp.Or(wrong, err)
		return found
	}
	if method := at("method"); wrong != nil || !isText(method, "tools/call") {
		return nil, wrong
	}
	c := &toolCall{whole: value, id: at("id"), arguments: at("params", "arguments")}
	if name := at("params", "name"); len(name) > 0 && name[0] == '"' {
		c.tool = unquote(name)
	}
	if len(c.id) > 0 && c.id[0] != '"' && c.id[0] != '-' && (c.id[0] < '0' || c.id[0] > '9') {
		c.id = nil
	}
	return c, wrong
}

// isText reports whether a JSON value is this string.
func isText(value []byte, text string) bool {
	return len(value) > 0 && value[0] == '"' && unquote(value) == text
}

// keyOf returns the key of a call: the one that the client sends, or one that is made
// from tool and arguments, if the profile names the tool.
func (c *toolCall) keyOf(h http.Header, p *Profile) (string, error) {
	id, err := p.keyOf(h, c.whole)
	if !errors.Is(err, errNoKey) || !slices.Contains(p.Tools, c.tool) {
		return id, err
	}
	arguments := c.arguments
	if arguments == nil {
		arguments = []byte("{}")
	}
	content, err := key.AppendContent(nil, arguments)
	if err != nil {
		return "", fmt.Errorf("the arguments: %w", err)
	}
	return string(key.AppendText([]byte(c.tool+":"), content)), nil
}

// callOf returns the call whose client has a writer, or nil if its request is no call.
func callOf(w http.ResponseWriter) *call {
	c, _ := w.(*call)
	return c
}

// call is the writer of a client that called a tool. What this package answers itself is a
// JSON-RPC response with the id of the call.
type call struct {
	http.ResponseWriter
	id    []byte
	begun bool // the header was sent
}

// Unwrap returns the writer below, for http.ResponseController.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (c *call) WriteHeader(status int) {
	c.begun = c.begun || status >= 200
	c.ResponseWriter.WriteHeader(status)
}

// fail answers with a JSON-RPC error, or ends a stream with it. Its code is the status that
// the problem has in HTTP, and its data are the problem details. The status of the answer is
// 200, because clients look for a JSON-RPC error in no other answer, but they ask for new
// credentials after 401 and 403.
func (c *call) fail(status int, text string, problem []byte) {
	message, err := json.Marshal(rpcError{"2.0", c.id, rpcProblem{status, text, problem}})
	if err != nil {
		panic(err) // the id is valid, and so are the details
	}
	if c.begun {
		_, _ = c.Write(append([]byte("\n\n"), framed(message)...)) // the client may have left
		return
	}
	if status != http.StatusUnauthorized && status != http.StatusForbidden {
		status = http.StatusOK
	}
	c.Header().Set("Content-Type", "application/json")
	c.Header().Set("Content-Length", strconv.Itoa(len(message)))
	c.WriteHeader(status)
	_, _ = c.Write(message) // the client may have left
}

type rpcError struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   rpcProblem      `json:"error"`
}

type rpcProblem struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// body returns the body of a kept answer for this call.
func (c *call) body(a *answer) []byte {
	kept, ok := readResponse(a.body)
	if !ok {
		return a.body // an error page of the service
	}
	rest := a.body
	if kept.id != nil { // it was kept with another profile
		rest = withoutID(rest)
	}
	out := slices.Concat([]byte(`{"id":`), c.id, []byte(","), rest[1:])
	if slices.ContainsFunc(a.header, func(l line) bool { return l.name == "Content-Type" && isStream(l.value) }) {
		return framed(out)
	}
	return out
}

// framed returns a message as an event of a stream.
func framed(message []byte) []byte {
	return slices.Concat([]byte("event: message\ndata: "), message, []byte("\n\n"))
}

// response is a JSON-RPC response.
type response struct {
	id            []byte // nil if it has none
	result, error []byte // one of them
}

// readResponse reads a message. It is not ok unless the message is a response.
func readResponse(text []byte) (r response, ok bool) {
	if !json.Valid(text) {
		return r, false
	}
	value := jsontext.Trim(text)
	if value[0] != '{' {
		return r, false
	}
	for name, v := range children(value) {
		switch name.decoded {
		case "id":
			r.id = v
		case "result":
			r.result = v
		case "error":
			r.error = v
		case "method":
			return r, false
		}
	}
	return r, r.result != nil || r.error != nil
}

// responseIn returns the text of the response in an event. The event may be a batch of messages
// (revision 2025-03-26), of which others are notifications. It is not ok if none is a response.
func responseIn(event []byte) (one []byte, ok bool) {
	if begin := bytes.TrimLeft(event, " \t\r\n"); len(begin) == 0 || begin[0] != '[' || !json.Valid(event) {
		_, ok = readResponse(event)
		return event, ok
	}
	for _, message := range children(jsontext.Trim(event)) {
		if _, ok := readResponse(message); ok {
			return message, true
		}
	}
	return nil, false
}

// withoutID returns the text of a response, in one line and without its id. It begins with
// the member jsonrpc, or another one: no response is empty.
func withoutID(text []byte) []byte {
	var line bytes.Buffer
	_ = json.Compact(&line, text) // it is valid
	out := []byte{'{'}
	for name, v := range children(line.Bytes()) {
		if name.decoded == "id" {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, name.literal...), ':'), v...)
	}
	return append(out, '}')
}

// noEffect reports whether a response says that its call took no effect. A response
// says so with an error code of Profile.Release, with a mark in its result, or by asking for
// more input, which the service needs before it does anything.
func (o *Options) noEffect(r *response) bool {
	if r.error != nil {
		code, err := valueBelow(r.error, []string{"code"})
		n, notNumber := strconv.Atoi(string(code))
		return err == nil && notNumber == nil && isCode(n) && slices.Contains(o.release, n)
	}
	is := func(want string, path ...string) bool {
		v, err := valueBelow(r.result, path)
		return err == nil && string(v) == want
	}
	return is(`"input_required"`, "resultType") || is("true", "_meta", "idempotencyNoEffect") ||
		is("true", "isError") && slices.Contains(o.Profile.Release, toolErrors)
}

// toolErrors is the word of Profile.Release for results that say that the tool failed.
const toolErrors = "isError"

// events finds the response in a stream of events as its pieces come. Notifications, and
// requests of the service, are not kept.
type events struct {
	most     int64        // bytes of an event
	memory   *reservation // for the event that is coming
	response []byte       // without its id; nil until it came
	resumes  bool         // an event has an id: its client may ask for the rest of the stream
	over     bool         // the response was too long

	line, data []byte // of the event that is coming
	taken      int64  // of memory
	long       bool   // it is too long
	lost       bool   // it is too long, and is the response
	other      bool   // it is not of the type message
	returned   bool   // the last byte was a carriage return
}

// add reads a piece. If the response ends in it, it returns the index behind its event, and
// otherwise 0.
func (e *events) add(piece []byte) (end int) {
	for i := 0; i < len(piece) && e.response == nil; {
		if e.returned && piece[i] == '\n' {
			e.returned = false
			i++
			continue
		}
		e.returned = false
		n := bytes.IndexAny(piece[i:], "\r\n")
		if n < 0 {
			e.append(piece[i:])
			return 0
		}
		e.append(piece[i : i+n])
		i += n + 1
		e.returned = piece[i-1] == '\r'
		if e.endLine(); e.response != nil {
			return i
		}
	}
	return 0
}

// append adds to a line. Of an event that is too long, only the first byte of a line counts:
// an empty line ends it.
func (e *events) append(text []byte) {
	want := int64(len(e.line) + len(e.data) + len(text))
	switch {
	case e.long:
	case want <= e.most && (want <= e.taken || e.memory.take(want-e.taken)):
		e.taken = max(e.taken, want)
	default:
		e.long, e.lost = true, e.beginsResponse(text)
	}
	if e.long {
		e.data, text = e.data[:0], text[:min(len(text), 1)]
	}
	e.line = append(e.line, text...)
}

// beginsResponse reports whether the event that is coming is a response, as far as its beginning
// tells, with a part of text. A notification may be too long as well, and says nothing of the call.
func (e *events) beginsResponse(text []byte) bool {
	begin := bytes.Clone(e.data)
	name, value, _ := bytes.Cut(slices.Concat(e.line, text[:min(len(text), 1<<10)]), []byte(":"))
	if string(bytes.TrimPrefix(name, []byte("\ufeff"))) == "data" {
		begin = append(begin, value...)
	}
	members := json.NewDecoder(bytes.NewReader(begin))
	if first, err := members.Token(); err != nil || first != json.Delim('{') {
		return false
	}
	for {
		var skipped json.RawMessage
		switch name, err := members.Token(); {
		case err != nil, name == "method":
			return false
		case name == "result", name == "error":
			return true
		case members.Decode(&skipped) != nil:
			return false
		}
	}
}

// endLine reads a whole line. An empty one ends an event.
func (e *events) endLine() {
	line := bytes.TrimPrefix(e.line, []byte("\ufeff")) // it may begin a stream
	e.line = e.line[:0]
	if len(line) == 0 {
		if one, ok := responseIn(e.data); ok && !e.other && !e.long {
			e.response = withoutID(one)
		}
		e.over = e.over || e.lost && !e.other
		e.data, e.other, e.long, e.lost = e.data[:0], false, false, false
		return
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		e.data = append(append(e.data, value...), '\n')
	case "event":
		e.other = len(value) > 0 && string(value) != "message"
	case "id":
		e.resumes = true
	}
}
