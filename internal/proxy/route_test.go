package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/config"
)

// A client must not choose the rules of a route by the spelling of a path that its service
// takes for another one.
func TestEquivalentPathsHaveTheSameRoute(t *testing.T) {
	t.Parallel()
	post := httpidem.Profile{Methods: []string{http.MethodPost}}
	required := post
	required.Required = true
	table := &table{routes: []*route{ // the longest path first
		{Route: &config.Route{Name: "strange", Path: "/strange//path"}, profile: post},
		{Route: &config.Route{Name: "health", Path: "/v1/pay/health"}, profile: post},
		{Route: &config.Route{Name: "folder", Path: "/folder/"}, profile: post},
		{Route: &config.Route{Name: "pay", Path: "/v1/pay"}, profile: required},
		{Route: &config.Route{Name: "rest", Path: "/"}, profile: post},
	}}
	for path, want := range map[string]string{
		"/v1/pay": "pay", "/v1/pay/7": "pay", "/v1/pay?x=1": "pay", "/v1/payments": "rest", "/": "rest", "/v2": "rest",
		"/v1//pay": "pay", "//v1/pay": "pay", "/v1/./pay": "pay", "/x/../v1/pay": "pay", "/v1/x/../pay/7": "pay",
		"/v1/pay;x=1": "pay", "/v1;a/pay;b/7": "pay", "/;/v1/pay": "pay",
		"/v1/p%61y": "pay", "/v1%2Fpay": "pay", "/%2e%2e/v1/pay": "pay", "/x/%2E%2E/v1/pay": "pay", "/v1/pay%3Bx=1": "pay", `/v1%5Cpay`: "pay", "/v1%2f%2fpay": "pay",
		// A service that takes the path literally finds the route that requires a key.
		"/v1/pay/../refund": "pay", "/v1/pay/health": "health", "/v1/pay/x/../health": "pay",
		"/folder/": "folder", "/folder/a": "folder", "/folder": "rest", "/folder//a": "folder",
		"/strange//path": "strange", "/strange//path/a": "strange", "/strange/path": "rest",
	} {
		r := httptest.NewRequest(http.MethodPost, "http://example.org"+path, nil)
		if got := table.match(r).Name; got != want {
			t.Errorf("%s has the route %s, want %s", path, got, want)
		}
	}
	if got := table.match(httptest.NewRequest(http.MethodOptions, "*", nil)).Name; got != "rest" {
		t.Errorf("* has the route %s", got)
	}
}
