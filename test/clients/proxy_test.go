//go:build unix

package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// proxy stands between a client and the server. It does a fault to the first requests that
// have a verb.
type proxy struct {
	*httptest.Server
	target *server
	verb   string // "all" is every verb
	fault  string
	to     *http.Client

	mu       sync.Mutex // guards the fields below
	times    int        // faults to come
	faults   int        // faults that happened
	renewals int        // requests that renewed all their leases
	refused  int        // requests that did not reach the server
	draining int        // requests that the server refused because it drains
	granted  []string   // tokens that clients got
	changed  chan struct{}
}

func newProxy(t *testing.T, target *server, verb, fault string, times int) *proxy {
	t.Helper()
	p := &proxy{target: target, verb: verb, fault: fault, times: times, changed: make(chan struct{}), to: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
	})
	return p
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	fault := p.next(verbsOf(r.URL.Path, body))
	if fault == "large token" {
		body = shift(body, -1)
	}
	switch fault {
	case "drop":
		panic(http.ErrAbortHandler)
	case "429":
		refuse(w, 429, `{"type":"https://x/rate-limited","status":429,"title":"too many","class":"retryable","retry":"later"}`)
		return
	case "503":
		refuse(w, 503, `{"type":"https://x/overloaded","status":503,"title":"busy","class":"retryable","retry":"later"}`)
		return
	case "middlebox":
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(502)
		fmt.Fprint(w, "<html>Bad gateway</html>")
		return
	case "at once":
		go func() { _, _, _ = p.forward(r, body) }()
	}
	status, header, answer := p.mustForward(r, body)
	switch fault {
	case "lose":
		panic(http.ErrAbortHandler)
	case "delay":
		<-r.Context().Done() // until the client has given up
		panic(http.ErrAbortHandler)
	case "reset":
		cut(w, answer)
		return
	case "twice":
		status, header, answer = p.mustForward(r, body)
	case "504":
		w.WriteHeader(504)
		return
	case "no object":
		status, answer = 200, []byte(`[7]`)
	case "no items":
		status, answer = 200, []byte(`{"items":{}}`)
	case "no item":
		status, answer = 200, []byte(`{"items":[7]}`)
	case "no problem":
		status, answer = 200, []byte(`{"items":[{"error":null}]}`)
	case "odd problem":
		status, answer = 200, []byte(`{"items":[{"error":{"type":7,"status":"x","retry":1,"retry_after_ms":"x"}}]}`)
	case "no answer":
		status, answer = 200, []byte(`null`)
	case "no token":
		answer = grant.ReplaceAll(answer, []byte(`"token":""`))
	case "odd token":
		answer = grant.ReplaceAll(answer, []byte(`"token":"seven"`))
	case "no lease":
		answer = regexp.MustCompile(`"lease_ms":`).ReplaceAll(answer, []byte(`"other":`))
	case "odd attempt":
		answer = regexp.MustCompile(`"attempt":\s*\d+`).ReplaceAll(answer, []byte(`"attempt":"x"`))
	case "word":
		answer = regexp.MustCompile(`"decision":\s*"\w+"`).ReplaceAll(answer, []byte(`"decision":"perhaps"`))
	case "large token":
		answer = shift(answer, 1)
	}
	p.see(status, r.URL.Path, answer)
	for name, values := range header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.WriteHeader(status)
	_, _ = w.Write(answer) // the client may have gone
}

func refuse(w http.ResponseWriter, status int, problem string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(status)
	fmt.Fprint(w, problem)
}

// cut sends a part of an answer and resets the connection.
func cut(w http.ResponseWriter, answer []byte) {
	connection, writer, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()
	fmt.Fprintf(writer, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer[:len(answer)/2])
	_ = writer.Flush()
	_ = connection.(*net.TCPConn).SetLinger(0)
}

// next returns the fault of a request, or "".
func (p *proxy) next(verbs []string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.times == 0 || p.verb != "all" && !slices.Contains(verbs, p.verb) {
		return ""
	}
	p.times--
	p.faults++
	return p.fault
}

// verbsOf returns the verbs of a request.
func verbsOf(path string, body []byte) []string {
	verb := strings.TrimPrefix(path, "/v1/")
	if verb != "batch" {
		return []string{verb}
	}
	var batch struct{ Items []map[string]json.RawMessage }
	_ = json.Unmarshal(body, &batch) // the server refuses what is not JSON
	var verbs []string
	for _, item := range batch.Items {
		for verb := range item {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

// mustForward sends a request to the server. Without a server, the client's connection ends.
func (p *proxy) mustForward(r *http.Request, body []byte) (int, http.Header, []byte) {
	status, header, answer := p.forward(r, body)
	if status == 0 {
		p.count(&p.refused)
		panic(http.ErrAbortHandler)
	}
	return status, header, answer
}

func (p *proxy) forward(r *http.Request, body []byte) (int, http.Header, []byte) {
	request, err := http.NewRequest(r.Method, p.target.url+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil
	}
	request.Header = r.Header.Clone()
	response, err := p.to.Do(request)
	if err != nil {
		return 0, nil, nil
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, nil
	}
	return response.StatusCode, response.Header, answer
}

// count adds one to a counter of the proxy.
func (p *proxy) count(counter *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*counter++
	close(p.changed)
	p.changed = make(chan struct{})
}

var grant = regexp.MustCompile(`"token":\s*"(\d+)"`)

// see notes what a client learns from an answer.
func (p *proxy) see(status int, path string, answer []byte) {
	if path == "/v1/extend" && status == 200 && !bytes.Contains(answer, []byte(`"error"`)) {
		p.count(&p.renewals)
	}
	if bytes.Contains(answer, []byte("/draining")) {
		p.count(&p.draining)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, found := range grant.FindAllSubmatch(answer, -1) {
		p.granted = append(p.granted, string(found[1]))
	}
}

// shift adds 1<<63 to the tokens of a body, or takes it away.
func shift(body []byte, sign int) []byte {
	return grant.ReplaceAllFunc(body, func(member []byte) []byte {
		token, err := strconv.ParseUint(string(grant.FindSubmatch(member)[1]), 10, 64)
		if err != nil {
			return member
		}
		if sign > 0 {
			token += 1 << 63
		} else {
			token -= 1 << 63
		}
		return fmt.Appendf(nil, `"token":"%d"`, token)
	})
}
