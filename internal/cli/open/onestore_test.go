package open_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestVerbForOneStoreNeedsNoVariablesOfOtherStores runs each verb that names a store on a machine
// with the variables and files of this store alone.
func TestVerbForOneStoreNeedsNoVariablesOfOtherStores(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores:
  db:    { postgres: { dsn: "${env:DATABASE}" } }
  keys:  { embedded: { path: keys } }
  other: { postgres: { dsn: "${file:/none/database}" } }
  cache: { redis: { url: "rediss://h", tls: { ca: /none/ca.pem } } }
admin: { auth: { token: "${env:ADMIN_TOKEN}" } }
pipelines:
  orders:
    source: { kafka: { brokers: ["${env:KAFKA}"], topics: [in], group: g } }
    key: { id: .id }
    store: other
    sink: { webhook: { url: "https://${env:TARGET}/", headers: { Authorization: "${env:TOKEN}" } } }
`)
	address := programtest.NewDatabase(t, false)
	env := func(name string) string { return map[string]string{"DATABASE": address}[name] }
	with := func(words string) programtest.Outcome {
		t.Helper()
		return programtest.RunEnv(t, env, "", strings.Fields(strings.ReplaceAll(words, "FILE", file))...)
	}
	for _, words := range []string{
		"migrate sql --config FILE --store-name db",
		"migrate up --config FILE --store-name db",
		"migrate status --config FILE --store-name db",
		"keys ls --config FILE --store-name db",
		"keys stats --config FILE --store-name db",
		"keys import /dev/null --config FILE --store-name keys",
		"keys ls --config FILE --store-name keys",
		"doctor FILE keys",
		"why a --config FILE --store-name db",
		"why a --config FILE --store-name keys",
	} {
		if got := with(words); got.Status != term.ExitDone {
			t.Errorf("%s: %+v", words, got)
		}
	}
	all := []string{"DATABASE", "/none/database", "ADMIN_TOKEN", "KAFKA", "TARGET", "TOKEN"}
	for words, wants := range map[string][]string{
		"keys ls --config FILE --store-name other":  {"/none/database"},
		"keys ls --config FILE --store-name cache":  {"/none/ca.pem"},
		"keys ls --config FILE --store-name orther": {"orther: FILE has no such store: did you mean other?"},
		"keys ls --config FILE":                     {"--store-name NAME is missing: FILE names db, keys, other, cache"},
		"migrate sql --config FILE --store-name db": {"DATABASE"},
		"lint FILE":                  all,
		"run FILE":                   all,
		"doctor FILE":                all,
		"doctor FILE orders":         all,
		"explain FILE":               all,
		"why a --config FILE":        all,
		"parked ls --config FILE":    all,
		"dry-run FILE":               all,
		"kafka txn ls --config FILE": all,
	} {
		got := programtest.Run(t, "", strings.Fields(strings.ReplaceAll(words, "FILE", file))...)
		lines := strings.Split(strings.TrimSpace(got.Stderr), "\n")
		if got.Status != term.ExitUsage || len(lines) != len(wants) {
			t.Errorf("%s: %+v, want what it says of %v alone", words, got, wants)
		}
		for _, want := range wants {
			if want = strings.ReplaceAll(want, "FILE", file); !strings.Contains(got.Stderr, want) {
				t.Errorf("%s: %+v, want %q", words, got, want)
			}
		}
	}
}
