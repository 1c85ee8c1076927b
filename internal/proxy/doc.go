// Package proxy is the HTTP server of semel proxy: it takes the proxy of a configuration,
// listens, and passes requests on to services with the rules of package httpidem.
package proxy
