package httpsrc

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// send sends a request while the source is read, and returns the status and the message,
// or nil if the source refused the request.
func send(t *testing.T, s *Source, header http.Header, body []byte, chunked bool) (*http.Response, *semel.Message) {
	t.Helper()
	from := io.Reader(bytes.NewReader(body))
	if chunked {
		from = io.MultiReader(from)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address(s), from)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	answered := make(chan *http.Response, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			resp = &http.Response{}
		} else {
			resp.Body.Close()
		}
		answered <- resp
	}()
	select {
	case resp := <-answered:
		return resp, nil
	case req := <-s.queue:
		body, _ := req.events.next()
		it := s.item(req, body)
		if got := s.held.Load(); got != it.Bytes() {
			t.Errorf("%d bytes are held, want %d", got, it.Bytes())
		}
		if err := s.Ack(t.Context(), []*pipeline.Item{it}); err != nil {
			t.Error(err)
		}
		return <-answered, &it.Message
	}
}

func compressed(t *testing.T, text string, to func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var b bytes.Buffer
	w := to(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }
func zlibbed(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }
func stored(w io.Writer) io.WriteCloser  { z, _ := gzip.NewWriterLevel(w, gzip.NoCompression); return z }
func zstded(w io.Writer) io.WriteCloser {
	z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	return z
}
func deflated(w io.Writer) io.WriteCloser { d, _ := flate.NewWriter(w, 9); return d }

func TestACompressedBodyIsDecompressedOrRefused(t *testing.T) {
	t.Parallel()
	const most = 1000
	s := open(t, Options{MaxBody: most})
	text := `{"id":6}`
	full, bomb := strings.Repeat("x", most), strings.Repeat("x", most+1)
	zip := compressed(t, text, gzipped)
	for name, c := range map[string]struct {
		coding string
		body   []byte
		want   string
		status int
	}{
		"none":                {"", []byte(text), text, 200},
		"identity":            {"identity", []byte(text), text, 200},
		"gzip":                {"gzip", zip, text, 200},
		"capitals":            {"GZip", zip, text, 200},
		"x-gzip":              {"x-gzip", zip, text, 200},
		"gzip and identity":   {"identity, gzip", zip, text, 200},
		"two members":         {"gzip", append(bytes.Clone(zip), zip...), text + text, 200},
		"zlib":                {"deflate", compressed(t, text, zlibbed), text, 200},
		"bare deflate":        {"deflate", compressed(t, text, deflated), text, 200},
		"empty":               {"gzip", nil, "", 200},
		"nothing compressed":  {"gzip", compressed(t, "", gzipped), "", 200},
		"as much as may be":   {"gzip", compressed(t, full, gzipped), full, 200},
		"too much":            {"gzip", compressed(t, bomb, gzipped), "", 413},
		"too much deflated":   {"deflate", compressed(t, bomb, zlibbed), "", 413},
		"too much as sent":    {"gzip", compressed(t, full[:most-10], stored), "", 413},
		"not gzip":            {"gzip", []byte(text), "", 400},
		"not deflate":         {"deflate", []byte(text), "", 400},
		"cut":                 {"gzip", zip[:len(zip)-1], "", 400},
		"more behind gzip":    {"gzip", append(bytes.Clone(zip), "more"...), "", 400},
		"more behind deflate": {"deflate", append(compressed(t, text, zlibbed), "more"...), "", 400},
		"damaged":             {"gzip", append(bytes.Clone(zip[:len(zip)-8]), make([]byte, 8)...), "", 400},
		"zstd twice":          {"zstd, zstd", compressed(t, string(compressed(t, text, zstded)), zstded), "", 415},
		"br":                  {"br", []byte(text), "", 415},
		"zstd":                {"zstd", compressed(t, text, zstded), text, 200},
		"two frames":          {"zstd", append(compressed(t, text, zstded), compressed(t, text, zstded)...), text + text, 200},
		"empty zstd":          {"zstd", nil, "", 200},
		"nothing in zstd":     {"zstd", compressed(t, "", zstded), "", 200},
		"not zstd":            {"zstd", []byte(text), "", 400},
		"zstd is full":        {"zstd", compressed(t, full, zstded), full, 200},
		"too much zstd":       {"zstd", compressed(t, bomb, zstded), "", 413},
		"more behind zstd":    {"zstd", append(compressed(t, text, zstded), "more"...), "", 400},
		"zstd looks far back": {"zstd", compressed(t, text, farBack), "", 400},
		"twice":               {"gzip, gzip", compressed(t, string(zip), gzipped), text, 200},
		"a list":              {"deflate,,zstd , x-gzip", compressed(t, string(compressed(t, string(compressed(t, text, zlibbed)), zstded)), gzipped), text, 200},
		"a list in lines":     {"gzip\nzstd", compressed(t, string(zip), zstded), text, 200},
		"in another order":    {"gzip, zstd", compressed(t, string(compressed(t, text, zstded)), gzipped), "", 400},
		"a long list":         {"gzip, gzip, gzip, gzip", zip, "", 415},
		"too much inside":     {"gzip, gzip", compressed(t, string(compressed(t, bomb, gzipped)), gzipped), "", 413},
		"too much between":    {"gzip, gzip", compressed(t, string(compressed(t, full, stored)), gzipped), "", 413},
		"more behind inside":  {"gzip, zstd", compressed(t, string(append(bytes.Clone(zip), "more"...)), zstded), "", 400},
		"gzip in another":     {"gzip, br", zip, "", 415},
		"an unknown word":     {"aes128gcm", []byte(text), "", 415},
	} {
		for _, chunked := range []bool{false, true} {
			header := http.Header{}
			if c.coding != "" {
				header["Content-Encoding"] = strings.Split(c.coding, "\n")
			}
			resp, m := send(t, s, header, c.body, chunked)
			if resp.StatusCode != c.status || (m != nil) != (c.status == 200) || m != nil && string(m.Body) != c.want {
				t.Errorf("%s, chunked %v: %d, %+v, want %d, %q", name, chunked, resp.StatusCode, m, c.status, c.want)
			}
			if m != nil && len(m.Headers) > 2 { // Accept-Encoding and User-Agent
				t.Errorf("%s: the headers are %s", name, m.Headers)
			}
			if accepts := resp.Header.Get("Accept-Encoding"); (accepts == codings) != (c.status == 415) {
				t.Errorf("%s: Accept-Encoding: %q", name, accepts)
			}
		}
	}
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held of requests that are answered", n)
	}
}

// farBack writes a frame whose window is larger than maxWindow.
func farBack(w io.Writer) io.WriteCloser {
	z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(2*maxWindow), zstd.WithSingleSegment(false))
	_, _ = z.Write([]byte("x"))
	_ = z.Flush() // the frame begins before its size is known
	return z
}

// A sender or a proxy that ends too early must not have its message taken for a shorter one.
func TestNoCutBodyIsTaken(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	text := strings.Repeat(`{"id":6},`, 20)
	for name, pack := range map[string]func(io.Writer) io.WriteCloser{"gzip": gzipped, "deflate": zlibbed, "zstd": zstded} {
		whole := compressed(t, text, pack)
		for n := 1; n < len(whole); n++ {
			if resp, m := send(t, s, http.Header{"Content-Encoding": {name}}, whole[:n], false); resp.StatusCode != 400 {
				t.Errorf("%s, %d of %d bytes: %d, %+v", name, n, len(whole), resp.StatusCode, m)
			}
		}
	}
}

// A body that decompresses to far more than the limit takes little more memory than the limit.
func TestBombsTakeNoMemory(t *testing.T) {
	const most = 1 << 20
	s := open(t, Options{MaxBody: most, MaxBytes: 4 * most})
	zeros := string(make([]byte, 64*most)) // 64 KiB and less as gzip and zstd
	bomb := compressed(t, zeros, gzipped)  // takes seconds with the race detector
	bombs := map[string][]byte{
		"gzip":       bomb,
		"zstd":       compressed(t, zeros, zstded),
		"gzip, zstd": compressed(t, string(bomb), zstded),
	}
	for name, bomb := range bombs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var senders sync.WaitGroup
		var refused atomic.Int32
		requests := 40
		if testing.Short() {
			requests = 10
		}
		for range requests / 5 {
			senders.Go(func() {
				for range 5 {
					resp, m := send(t, s, http.Header{"Content-Encoding": {name}}, bomb, false)
					if resp.StatusCode == 413 {
						refused.Add(1)
					} else if resp.StatusCode != 503 || m != nil {
						t.Errorf("%s: %d", name, resp.StatusCode)
					}
				}
			})
		}
		senders.Wait()
		runtime.ReadMemStats(&after)
		taken := (after.TotalAlloc - before.TotalAlloc) / uint64(requests)
		if refused.Load() == 0 || s.held.Load() != 0 || taken > 10*most {
			t.Errorf("%s: %d refused with 413, %d bytes are held, each request took %d", name, refused.Load(), s.held.Load(), taken)
		}
	}
}

func TestHeadersAreNormalised(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	for name, c := range map[string]struct {
		sent http.Header
		want map[string]string
	}{
		"case":            {http.Header{"X-GitHub-Delivery": {"d-1"}, "webhook-id": {"w-1"}, "TRACEPARENT": {"00-1"}}, map[string]string{"x-github-delivery": "d-1", "webhook-id": "w-1", "traceparent": "00-1"}},
		"lines":           {http.Header{"X-A": {"1", "2"}}, map[string]string{"x-a": "1, 2"}},
		"one line":        {http.Header{"X-A": {"1, 2"}}, map[string]string{"x-a": "1, 2"}},
		"key in quotes":   {http.Header{"Idempotency-Key": {`"q-1"`}}, map[string]string{"idempotency-key": "q-1"}},
		"key":             {http.Header{"idempotency-key": {"q-1"}}, map[string]string{"idempotency-key": "q-1"}},
		"with parameters": {http.Header{"Idempotency-Key": {`"q\"1";v=1`}}, map[string]string{"idempotency-key": `q"1`}},
		"two keys":        {http.Header{"Idempotency-Key": {`"a"`, `"b"`}}, map[string]string{"idempotency-key": `"a", "b"`}},
		"other in quotes": {http.Header{"If-Match": {`"q-1"`}}, map[string]string{"if-match": `"q-1"`}},
		"kept":            {http.Header{"Cookie": {"a=b"}, "authorization": {"Bearer t"}, "Proxy-Authorization": {"Basic x"}}, nil},
	} {
		_, m := send(t, s, c.sent, []byte("x"), false)
		got := map[string]string{}
		for _, h := range m.Headers {
			if h.Name != "user-agent" && h.Name != "accept-encoding" {
				got[h.Name] += string(h.Value)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		for header, value := range c.want {
			for _, spelling := range []string{header, strings.ToUpper(header), http.CanonicalHeaderKey(header)} {
				if found, ok := m.Header(spelling); !ok || string(found) != value {
					t.Errorf("%s: %s is %q, want %q", name, spelling, found, value)
				}
			}
		}
		for header := range c.sent {
			if _, ok := m.Header(header); ok == IsKept(header) {
				t.Errorf("%s: %s is there: %v", name, header, ok)
			}
		}
	}
}
