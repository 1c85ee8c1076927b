package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const found = `
{"config":{"protocol_version":"v1.0.0"}}
{"osv":{"id":"GO-1"}}
{"finding":{"osv":"GO-1","trace":[{"module":"m","version":"v1.0.0"}]}}
{"finding":{"osv":"GO-2","fixed_version":"v1.2.0","trace":[{"module":"m","version":"v1.0.0","package":"m/p","function":"F"},{"module":"own","function":"main"}]}}
{"finding":{"osv":"GO-2","fixed_version":"v1.2.0","trace":[{"module":"m","version":"v1.0.0","package":"m/p","function":"G"}]}}
`

func TestCalledVulnerabilitiesFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ list, out, err string }{
		{"", "GO-2: m v1.0.0 calls m/p.F, fixed in v1.2.0", "(GO-2)"},
		{"# comment here\nGO-2 only in tests\n", "GO-2: m v1.0.0 calls m/p.F, fixed in v1.2.0: https://pkg.go.dev/vuln/GO-2 (accepted)\ngovulncheck: 1 known", ""},
		{"GO-2 only in tests\nGO-9 gone\n", "GO-9 is accepted and not found: remove it", ""},
	} {
		var out strings.Builder
		err := judge(&out, strings.NewReader(found), accepted(c.list))
		if !strings.Contains(out.String(), c.out) || strings.Contains(out.String(), "GO-1") || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %s, %v", c.list, &out, err)
		}
	}
	if err := judge(&strings.Builder{}, strings.NewReader(`{"finding":`), nil); err == nil {
		t.Error("a broken output is accepted")
	}
}

func TestDatabaseThatCannotBeReachedIsNoFinding(t *testing.T) {
	t.Parallel()
	here := httptest.NewServer(http.FileServer(http.Dir(t.TempDir())))
	if err := reach(t.Context(), here.URL); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a server without the database: %v", err)
	}
	here.Close()
	if err := reach(t.Context(), here.URL); err == nil {
		t.Error("a server that is gone is reached")
	}
	if err := reach(t.Context(), "file:///db"); err != nil {
		t.Error(err)
	}
}

func TestModulesAndVersionsThatAreNotListedFail(t *testing.T) {
	t.Parallel()
	list := listText([]string{"m v1.0.0", "n v2.0.0"}, false, time.Now())
	if !strings.Contains(list, listUnchecked) || strings.Contains(listText(nil, true, time.Now()), "NOT CHECKED") {
		t.Errorf("the state of the check is wrong:\n%s", list)
	}
	for modules, want := range map[string]string{
		"m v1.0.0":            "",
		"m v1.0.0,n v2.0.0":   "",
		"m v1.0.1,n v2.0.0":   "m v1.0.1 is not in tools/vulncheck/modules.txt\n",
		"m v1.0.0,new v1.0.0": "new v1.0.0 is not in tools/vulncheck/modules.txt\n",
	} {
		err := compare(strings.Split(modules, ","), list)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "go run ./tools/vulncheck -update")) {
			t.Errorf("%s: %v", modules, err)
		}
	}
}

func TestModulesOfTheBuildAreListed(t *testing.T) {
	t.Chdir("../..")
	modules, err := built(t.Context())
	if err != nil || len(modules) < 10 {
		t.Fatal(modules, err)
	}
	if err := compare(modules, moduleList); err != nil {
		t.Error(err)
	}
}
