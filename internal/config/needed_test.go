package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
)

// readFor reads a text for the use of one store.
func readFor(store, text string) (*config.File, error) {
	return kind.All().ReadForStore("c.yaml", strings.NewReader(text), noEnv, func(*config.File) (string, bool) { return store, true })
}

func TestOnlyReferencesOfTheStoreAreResolved(t *testing.T) {
	t.Parallel()
	const text = `stores:
  keys:  { embedded: { path: "${env:NONE_KEYS}" } }
  db:    { postgres: { dsn: "${env:NONE_DB}" } }
  cache: { redis: { cluster: ["h:1"], password: "${file:/none/cache}" } }
  near:  { redis: { url: "redis://${env:NONE_NEAR}" } }
  seen:  { filter: { rate: 0.01, expect: 1, window: "${env:NONE_SEEN}", redis: near } }
  both:  { tiered: { layers: [seen, cache, db], sees_every_writer: true } }
admin: { auth: { token: "${env:NONE_TOKEN}" }, listen: "${env:NONE_LISTEN}" }
log: { level: "${env:NONE_LEVEL}" }
pipelines:
  p:
    source: { kafka: { brokers: ["${env:NONE_BROKERS}"], topics: ["${env:NONE_TOPIC}"], group: g } }
    key: { id: .id }
    sink: { kafka: { brokers: ["${env:NONE_BROKERS}"], topic: "${env:NONE_OUT}" } }
`
	for store, wants := range map[string][]string{
		"keys":  {"NONE_KEYS"},
		"db":    {"NONE_DB"},
		"cache": {"/none/cache"},
		"near":  {"NONE_NEAR"},
		"seen":  {"NONE_SEEN", "NONE_NEAR"},
		"both":  {"NONE_DB", "/none/cache", "NONE_SEEN", "NONE_NEAR"},
		"none":  nil,
	} {
		_, err := readFor(store, text)
		said := fmt.Sprint(err)
		for _, want := range wants {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %s is not asked for: %s", store, want, said)
			}
		}
		if lines := strings.Count(said, "\n") + 1; err != nil && lines != len(wants) || (err == nil) != (len(wants) == 0) {
			t.Errorf("%s: %s, want of %v alone", store, said, wants)
		}
	}
}

func TestErrorsInOtherSectionsAreReportedToo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"stores: { a: { memory: {} }, b: { redes: {} } }":                                           "unknown field stores.b.redes",
		"stores: { a: { memory: {} }, b: { memory: {}, x: { redis: { url: '${env:NONE' } } } }":     "stores.b",
		"stores: { a: { memory: {} }, b: { redis: { url: 'redis://${env:A B}' } } }":                "does not name an environment variable",
		"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: .id } } }":                     "pipelines.p: source is missing",
		"stores: { a: { memory: {} }, b: { embedded: { path: k } }, c: { embedded: { path: k } } }": "stores.c: it has the same directory as b",
		// A stack decides what may be done to its layers.
		"stores: { a: { memory: {} }, b: { embedded: { path: k } }, c: { tiered: ['${env:NONE}', b] } }": "the environment variable NONE is not set",
	} {
		if _, err := readFor("a", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestStoreIsReadWhenOtherSectionsLackVariables replaces each field of each example, in
// turn, by a variable that is not set. Another store in the file needs nothing.
func TestStoreIsReadWhenOtherSectionsLackVariables(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../kind/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	tried := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		const admin = "admin: { listen: '127.0.0.1:1', auth: { username: u, password: p, token: t }, tls: { certificate: c, key: k } }\nshutdown: 30s\nlog: { level: info, format: json }\n"
		for n, last := 0, false; !last; n++ {
			var tree yaml.MapSlice
			if err := yaml.UnmarshalWithOptions(append([]byte(admin), data...), &tree, yaml.UseOrderedMap()); err != nil {
				t.Fatal(err)
			}
			left := n
			last = !replaceScalar(tree, &left) // then all are set, and the file is valid
			text, err := yaml.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			whole := strings.Replace(string(text), "stores:\n", "stores:\n  mine: { memory: {} }\n", 1)
			_, err = kind.All().Parse("c.yaml", []byte(whole), noEnv)
			if !strings.Contains(fmt.Sprint(err), "NONE_HERE is not set") {
				continue // references are not resolved in this field
			}
			tried++
			if _, err := readFor("mine", whole); err != nil {
				t.Errorf("%s: %v\nin:\n%s", file, err, whole)
			}
		}
	}
	if tried < 40 {
		t.Errorf("only %d fields were tried", tried)
	}
}

// replaceScalar replaces the n-th scalar, counted from 0, by a variable that is
// not set. It reports whether there are that many scalars.
func replaceScalar(node any, n *int) bool {
	switch node := node.(type) {
	case yaml.MapSlice:
		for i := range node {
			if isScalar(node[i].Value) {
				if *n == 0 {
					node[i].Value = "${env:NONE_HERE}"
					return true
				}
				*n--
			} else if replaceScalar(node[i].Value, n) {
				return true
			}
		}
	case []any:
		for i := range node {
			if isScalar(node[i]) {
				if *n == 0 {
					node[i] = "${env:NONE_HERE}"
					return true
				}
				*n--
			} else if replaceScalar(node[i], n) {
				return true
			}
		}
	}
	return false
}

func isScalar(node any) bool {
	switch node.(type) {
	case yaml.MapSlice, []any, nil:
		return false
	}
	return true
}
