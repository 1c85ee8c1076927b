package config

import (
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/schema"
)

// proxy checks the section "proxy".
func (l *Linter) proxy() {
	p := l.File.Proxy
	if p == nil {
		return
	}
	switch p.Caller.Kind {
	case "global":
		l.Add(doctor.Warning, NoRisk, "proxy.scope", "global", "a caller who knows or guesses the key of another one gets that one's answer", "write who the caller is, as in jwt:sub, unless all callers are one")
	case "header":
		l.Notice("proxy.scope", p.Caller.String()+", which the proxy does not verify", "a caller who sends the value of another one gets that one's answers", "use a header whose value is a secret or that a server before the proxy sets; or api-key, jwt, mtls or forward")
	case "basic":
		l.Notice("proxy.scope", "basic, which the proxy does not verify", "user name and password together name the caller: after a change of the password, a repetition of an earlier request runs again", "use jwt, mtls or forward, whose names stay")
	}
	if p.TLS == nil && !IsLoopback(HostOf(p.Listen)) {
		l.Notice("proxy.listen", p.Listen+", which other machines can reach, without tls", "credentials and bodies are sent in clear text", "set tls: { certificate, key }, or let a server with TLS stand before the proxy")
	}
	l.proxyStore(p)
	l.route("proxy", &p.Route, &p.Route)
	for _, r := range p.Routes {
		l.route("proxy.routes."+r.Name, r, &p.Route)
	}
}

// proxyStore checks the store of a proxy.
func (l *Linter) proxyStore(p *Proxy) {
	decider := l.File.Decider(p.Store.Name)
	if decider == nil {
		return
	}
	about := decider.Spec.About()
	switch {
	case about.NotLast != "":
		l.Add(doctor.Warning, Repeat, "proxy.store", decider.Name+" is "+decider.Spec.Kind(), "every key is lost when the proxy ends, and repeated requests run again", "use a durable store: embedded, redis or postgres")
	case about.BestEffort:
		l.Add(doctor.Warning, Repeat, "proxy.store", decider.Name+" is "+decider.Spec.Kind(), "a failover or an eviction can lose keys, and repeated requests run again", "use embedded or postgres for requests that must not run twice")
	}
	if p.OnLeaseExpired != "retry" {
		l.unsettled("proxy.on_lease_expired", p.Store.Name)
	}
	for _, gap := range about.Gaps {
		l.Add(doctor.Warning, Repeat, "proxy.store", decider.Name+" is "+decider.Spec.Kind(), gap+", and repeated requests run again", "change this setting of the store")
	}
	if about.Directory != "" && len(l.File.PipelinesOn(p.Store.Name)) > 0 {
		l.Notice("proxy.store", decider.Name+" is embedded, and pipelines use it too", "only one process can open it: semel run and semel proxy cannot run side by side", "give the proxy a store of its own")
	}
}

// route checks what a route adds to the proxy.
func (l *Linter) route(path string, r, proxy *Route) {
	inherits := r != proxy
	if r.FailOpen && !(inherits && proxy.FailOpen) {
		l.Add(doctor.Warning, Repeat, schema.Within(path, "fail_open"), "true", "while the store does not answer, every repeated request runs again", "write fail_open: false")
	}
	if r.OnLeaseExpired == "retry" && !(inherits && proxy.OnLeaseExpired == "retry") {
		l.Add(doctor.Warning, Repeat, schema.Within(path, "on_lease_expired"), "retry", "after a crash in the middle of a request, its repetition runs again", "write on_lease_expired: hold")
	}
	if r.Upstream != "" && !schema.HasScheme(r.Upstream, "https") && !(inherits && r.Upstream == proxy.Upstream) {
		if host := hostOfURL(r.Upstream); !IsLoopback(host) {
			l.Notice(schema.Within(path, "upstream"), "http, to "+host, "credentials and bodies are sent in clear text", "use https, or a network that only your services reach")
		}
	}
}

// serve checks what weakens the promise of the section "serve", or shows it to others.
func (l *Linter) serve() {
	s := l.File.Serve
	if s == nil {
		return
	}
	if s.Exposed() && len(s.Callers) == 0 {
		l.Add(doctor.Broken, NoRisk, "serve.listen", s.Address()+", which other machines can reach, without callers", "anyone who can connect can claim, complete and remove keys", "set callers, or listen on 127.0.0.1")
	} else if s.Exposed() && s.TLS == nil {
		l.Notice("serve.listen", s.Address()+", which other machines can reach, without tls", "tokens and results are sent in clear text", "set tls: { certificate, key }, or let a server with TLS stand before it")
	}
	decider := l.File.Decider(s.Store.Name)
	if decider == nil {
		return
	}
	about := decider.Spec.About()
	what := decider.Name + " is " + decider.Spec.Kind()
	switch {
	case about.NotLast != "":
		l.Add(doctor.Warning, Repeat, "serve.store", what, "every key is lost when the server ends, and repeated calls take effect again", "use a durable store: embedded, redis or postgres")
	case about.BestEffort:
		l.Add(doctor.Warning, Repeat, "serve.store", what, "a failover or an eviction can lose keys, and repeated calls take effect again", "use embedded or postgres for effects that must not happen twice")
	}
	for _, gap := range about.Gaps {
		l.Add(doctor.Warning, Repeat, "serve.store", what, gap+", and repeated calls take effect again", "change this setting of the store")
	}
	if s.Holds() {
		l.unsettled("serve.on_lease_expired", s.Store.Name)
	} else {
		l.Add(doctor.Warning, Repeat, "serve.on_lease_expired", "retry", "after a crash in the middle of an effect, the next call takes effect again", "write on_lease_expired: hold")
	}
}
