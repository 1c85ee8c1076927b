package faults

import (
	"bytes"
	"encoding/json"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// meter is a toxic that does no harm: it counts what comes by. Two of them
// around another toxic say what that one did.
type meter struct{ bytes atomic.Int64 }

// registerMeter makes the proxy know meters. It is called once.
func registerMeter() { toxics.Register("meter", new(meter)) }

// Pipe implements toxics.Toxic.
func (m *meter) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			m.bytes.Add(int64(len(c.Data)))
			stub.Output <- c
		}
	}
}

// toxic is what a proxy does to one direction of its connections.
type toxic struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Stream     string         `json:"stream"` // upstream to the server, downstream to the client
	Attributes map[string]any `json:"attributes"`
}

// proxy stands between clients and one server.
type proxy struct {
	t     *testing.T
	inner *toxiproxy.Proxy
}

func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	p := &proxy{t: t}
	p.start(servicestest.FreeAddr(t), upstream)
	t.Cleanup(func() { p.inner.Stop() })
	return p
}

func (p *proxy) start(listen, upstream string) {
	p.t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p.inner = toxiproxy.NewProxy(server, "server", listen, upstream)
	if err := p.inner.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// url returns an address of the server with the proxy in its place.
func (p *proxy) url(address string) string {
	p.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		p.t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(p.inner.Listen)
	if err != nil {
		p.t.Fatal(err)
	}
	u.Host = net.JoinHostPort(u.Hostname(), port)
	return u.String()
}

func (p *proxy) add(t toxic) toxics.Toxic {
	p.t.Helper()
	text, err := json.Marshal(t)
	if err != nil {
		p.t.Fatal(err)
	}
	wrapper, err := p.inner.Toxics.AddToxicJson(bytes.NewReader(text))
	if err != nil {
		p.t.Fatal(err)
	}
	return wrapper.Toxic
}

// harm is a toxic at work, between two meters.
type harm struct {
	p             *proxy
	came, wentOut *meter
}

// harm begins to do harm.
func (p *proxy) harm(t toxic) *harm {
	p.t.Helper()
	h := &harm{p: p}
	h.came = p.add(toxic{Name: "came", Type: "meter", Stream: t.Stream}).(*meter)
	t.Name = "harm"
	p.add(t)
	h.wentOut = p.add(toxic{Name: "went", Type: "meter", Stream: t.Stream}).(*meter)
	return h
}

// swallowed is how many bytes came to the toxic and did not leave it.
func (h *harm) swallowed() int64 { return h.came.bytes.Load() - h.wentOut.bytes.Load() }

// end ends the harm and all connections. It starts another proxy instead of this one. To
// remove a toxic, this one would wait for ever if the toxic is cut off and has bytes left
// to send.
func (h *harm) end() {
	h.p.t.Helper()
	h.p.inner.Stop()
	h.p.start(h.p.inner.Listen, h.p.inner.Upstream)
}
