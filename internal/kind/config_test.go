package kind_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/kind/filter"
	"github.com/semel-dev/semel/internal/kind/memory"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/internal/kind/tiered"
	"github.com/semel-dev/semel/internal/schema"
)

func noEnv(string) string { return "" }

func parse(t *testing.T, text string) *config.File {
	t.Helper()
	f, err := kind.All().Parse("dir/semel.yaml", []byte(text), noEnv)
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return f
}

// spec returns the description of a store.
func spec[T config.Spec](t *testing.T, f *config.File, name string) T {
	t.Helper()
	s, ok := f.Store(name)
	if !ok {
		t.Fatalf("there is no store %s", name)
	}
	got, ok := s.Spec.(T)
	if !ok {
		t.Fatalf("store %s is a %s", name, s.Spec.Kind())
	}
	return got
}

func TestEveryKindOfStoreIsRead(t *testing.T) {
	t.Parallel()
	f := parse(t, `
stores:
  mem:   { memory: { max_keys: 1e6 } }
  plain:
    memory:
  files: { embedded: { path: ./semel-data, fsync: interval } }
  cache:
    redis:
      url: redis://app:pa%2Fss@localhost:6379/3
      timeout: 500ms
      prefix: "cache:"
      persistence: synced
      compact: { window: 7d, expect: 1e7 }
  many:  { redis: { cluster: ["a:7000", "b:7001"], username: app, password: secret1, tls: { ca: ca.pem } } }
  found: { redis: { sentinel: { addresses: ["s:26379"], master: main } } }
  db:    { postgres: { dsn: "host=localhost dbname=app password='x y z w'", schema: once, cleanup: delete, partitions: 8 } }
  ages:  { postgres: { dsn: "host=h", cleanup: message-time, message_age: 7d } }
  seen:  { filter: { redis: many, rate: 0.001, expect: 1e7, window: 7d } }
  both:  { tiered: [cache, db] }
  three: { tiered: { layers: [seen, mem, db], max_age: 10m, sees_every_writer: true } }
`)
	if mem := spec[*memory.Store](t, f, "mem"); *mem != (memory.Store{MaxKeys: 1e6}) {
		t.Errorf("memory: %+v", mem)
	}
	if plain := spec[*memory.Store](t, f, "plain"); *plain != (memory.Store{}) {
		t.Errorf("memory without settings: %+v", plain)
	}
	if files := spec[*embedded.Store](t, f, "files"); *files != (embedded.Store{Path: filepath.Join("dir", "semel-data"), Fsync: "interval", KeepOrigin: true}) {
		t.Errorf("embedded: %+v", files)
	}
	cache := spec[*redis.Store](t, f, "cache")
	if cache.URL.Reveal() != "redis://app:pa%2Fss@localhost:6379/3" || cache.URL.String() != "redis://app:[hidden]@localhost:6379/3" ||
		cache.Prefix != "cache:" || cache.Persistence != "synced" ||
		cache.Timeout != 500*time.Millisecond || *cache.Compact != (redis.Compact{Window: 168 * time.Hour, Expect: 1e7}) {
		t.Errorf("redis: %+v", cache)
	}
	many := spec[*redis.Store](t, f, "many")
	if len(many.Cluster) != 2 || many.Username != "app" || many.Password.Reveal() != "secret1" || many.TLS.CA != filepath.Join("dir", "ca.pem") {
		t.Errorf("cluster: %+v", many)
	}
	if found := spec[*redis.Store](t, f, "found"); found.Sentinel.Master != "main" || found.Sentinel.Addresses[0] != "s:26379" {
		t.Errorf("sentinel: %+v", found)
	}
	db := spec[*postgres.Store](t, f, "db")
	if db.Schema != "once" || db.Partitions != 8 || db.DSN.String() != "host=localhost dbname=app password=[hidden]" {
		t.Errorf("postgres: %+v", db)
	}
	if ages := spec[*postgres.Store](t, f, "ages"); ages.Cleanup != "message-time" || ages.MessageAge != 168*time.Hour {
		t.Errorf("message-time: %+v", ages)
	}
	if seen := spec[*filter.Store](t, f, "seen"); seen.Redis.Name != "many" || seen.Rate != 0.001 || seen.Expect != 1e7 || seen.Window != 168*time.Hour {
		t.Errorf("filter: %+v", seen)
	}
	if both := spec[*tiered.Store](t, f, "both"); len(both.Layers) != 2 || both.Layers[1].Name != "db" || both.Layers[1].At.String() != "dir/semel.yaml:19:28" {
		t.Errorf("tiered: %+v", both)
	}
	three := spec[*tiered.Store](t, f, "three")
	if len(three.Layers) != 3 || three.MaxAge != 10*time.Minute || !three.SeesEveryWriter {
		t.Errorf("tiered with settings: %+v", three)
	}
	if got := strings.Join(f.StoreNames(), " "); got != "mem plain files cache many found db ages seen both three" {
		t.Errorf("names: %s", got)
	}
}

func TestAnchorsAndMergesAreResolved(t *testing.T) {
	t.Parallel()
	f := parse(t, `
x-limits: &limits { dsn: host=h, partitions: 1 }
x-more: &more { partitions: 2, prefix: x_ }
stores:
  a: &a { postgres: { <<: *limits, partitions: 3 } }
  b: { postgres: { <<: [*limits, *more] } }
  c: *a
`)
	if a := spec[*postgres.Store](t, f, "a"); a.DSN.Reveal() != "host=h" || a.Partitions != 3 {
		t.Errorf("a merge must not replace what is there: %+v", a)
	}
	if b := spec[*postgres.Store](t, f, "b"); b.DSN.Reveal() != "host=h" || b.Partitions != 1 || b.Prefix != "x_" {
		t.Errorf("the first of several merges wins: %+v", b)
	}
	if c := spec[*postgres.Store](t, f, "c"); !reflect.DeepEqual(c, spec[*postgres.Store](t, f, "a")) {
		t.Errorf("an alias is what it stands for: %+v", c)
	}
}

// TestErrorsSayWhereAndWhatToDo has one configuration for each case, and every
// line that is reported for it.
func TestErrorsSayWhereAndWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", `c.yaml: the file is empty: name a store under "stores"`},
		{"# nothing\n", `c.yaml: the file is empty: name a store under "stores"`},
		{"stores: [", `c.yaml:1:9: not valid YAML: sequence end token ']' not found`},
		{"- a\n", `c.yaml:1:1: expected sections such as stores:, got a list`},
		{"storse: {}\n", "c.yaml: stores is missing: name a store, as in \"stores: { keys: { embedded: { path: ./keys } } }\"\nc.yaml:1:1: unknown section storse: did you mean stores?"},
		{"stores: {}\n", "c.yaml:1:9: stores: it is empty: write at least one store"},
		{"stores:\n  a: { memory: {} }\npipelines: {}\n", "c.yaml:3:12: pipelines: it is empty: write at least one pipeline"},
		{"stores:\n  a: { memory: {} }\n  a: { memory: {} }\n", "c.yaml:3:3: stores.a is defined twice"},
		{"stores:\n  a b: { memory: {} }\n", "c.yaml:2:3: stores: this is not a store name: write letters, digits, - and _, at most 64"},
		{"stores:\n  a: memory\n", "c.yaml:2:6: stores.a: expected fields, got a text: write { memory: {} } with its settings between the inner braces"},
		{"stores:\n  a: {}\n", "c.yaml:2:6: stores.a: one of memory, embedded, redis, postgres, tiered, filter is missing"},
		{"stores:\n  a: { memory: {}, embedded: { path: x } }\n", "c.yaml:2:30: stores.a.embedded: memory and embedded exclude each other: keep one"},
		{"stores:\n  a: { memroy: {} }\n", "c.yaml:2:8: unknown field stores.a.memroy: did you mean memory?"},
		{"stores:\n  a: { redis: { url: 'redis://h', timeout: many, keep_id: true } }\n", "c.yaml:2:44: stores.a.redis.timeout: \"many\": not a duration: write it like 90s, 36h, 7d or 2w\nc.yaml:2:50: unknown field stores.a.redis.keep_id: did you mean keep_ids?"},
		{"stores:\n  a: { embedded: { fsync: sometimes } }\n", "c.yaml:2:18: stores.a.embedded: path is missing\nc.yaml:2:27: stores.a.embedded.fsync: \"sometimes\": write one of always, interval, never"},
		{"stores:\n  a: { embedded: { path: 007 } }\n", "c.yaml:2:26: stores.a.embedded.path: expected a text, got a number: put it in quotes"},
		{"stores:\n  a: { embedded: { path: [x] } }\n", "c.yaml:2:26: stores.a.embedded.path: expected a text, got a list"},
		{"stores:\n  a: { embedded: { path: } }\n", "c.yaml:2:25: stores.a.embedded.path: expected a text, got nothing"},
		{"stores:\n  a: { embedded: { path: '' } }\n", "c.yaml:2:26: stores.a.embedded.path: it is empty: write a value, or leave the field out"},
		{"stores:\n  a: { redis: { url: 'redis://h', timeout: 0 } }\n", "c.yaml:2:44: stores.a.redis.timeout: \"0\": must be above 0"},
		{"stores:\n  a: *b\n", "c.yaml:2:6: stores.a: this alias has no anchor before it: put a text that begins with * in quotes"},
		{"stores: &s\n  a: *s\n", "c.yaml:2:6: stores.a: this alias has no anchor before it: put a text that begins with * in quotes"},
		{"stores:\n  a: !!map { memory: {} }\n", "c.yaml:2:6: stores.a: a tag such as !!str has no meaning here: leave it out"},
		{"stores:\n  1: { memory: {} }\n", "c.yaml:2:3: stores: this is not a field name: put it in quotes if it is one"},
		{"stores: { a: { memory: {} } }\n---\nstores: {}\n", "c.yaml:3:1: a second document begins here: a configuration is one document"},
		{"stores:\n  a: { redis: { password: p } }\n", "c.yaml:2:15: stores.a.redis: one of url, cluster, sentinel is missing"},
		{"stores:\n  a: { redis: { url: 'redis://h', cluster: ['h:1'] } }\n", "c.yaml:2:44: stores.a.redis.cluster: url and cluster exclude each other: keep one"},
		{"stores:\n  a: { redis: { url: 'http://h' } }\n", "c.yaml:2:22: stores.a.redis.url: not an address of a Redis server: write redis://user:password@host:6379/0, or rediss:// for TLS"},
		{"stores:\n  a: { redis: { url: 'redis://h', username: u } }\n", "c.yaml:2:45: stores.a.redis.username: write it in the url, redis://user:password@host:port/database"},
		{"stores:\n  a: { redis: { url: 'redis://h', tls: {} } }\n", "c.yaml:2:40: stores.a.redis.tls: a url that starts with redis:// uses no TLS: write rediss://"},
		{"stores:\n  a: { redis: { cluster: [h] } }\n", "c.yaml:2:27: stores.a.redis.cluster[0]: write it like h:6379"},
		{"stores:\n  a: { redis: { cluster: 'h:1' } }\n", "c.yaml:2:26: stores.a.redis.cluster: expected a list, got a text: write [a, b]"},
		{"stores:\n  a: { redis: { sentinel: { master: x } } }\n", "c.yaml:2:27: stores.a.redis.sentinel: addresses is missing"},
		{"stores:\n  a: { redis: { cluster: ['h:1'], tls: { key: x } } }\n", "c.yaml:2:40: stores.a.redis.tls: certificate and key belong together: write both"},
		{"stores:\n  a: { redis: { url: 'redis://h', compact: {} } }\n", "c.yaml:2:44: stores.a.redis.compact: window is missing"},
		{"stores:\n  a: { postgres: {} }\n", "c.yaml:2:18: stores.a.postgres: dsn is missing"},
		{"stores:\n  a: { postgres: { dsn: 'mysql://h/d' } }\n", "c.yaml:2:25: stores.a.postgres.dsn: not an address of a PostgreSQL server: write postgres://user:password@host:5432/database"},
		{"stores:\n  a: { postgres: { dsn: 'postgres://u:a@b@h/d' } }\n", "c.yaml:2:25: stores.a.postgres.dsn: the address cannot be parsed: in the password of a URL write %2F for /, %3F for ?, %23 for # and %40 for @; elsewhere put a value with blanks in single quotes"},
		{"stores:\n  a: { postgres: { dsn: 'host=h', schema: 'a;b', prefix: A } }\n", "c.yaml:2:43: stores.a.postgres.schema: \"a;b\": write lower-case letters, digits and _, a letter first\nc.yaml:2:58: stores.a.postgres.prefix: \"A\": write lower-case letters, digits and _, a letter first"},
		{"stores:\n  a: { postgres: { dsn: 'host=h', cleanup: sweep } }\n", "c.yaml:2:44: stores.a.postgres.cleanup: \"sweep\": write one of delete, message-time"},
		{"stores:\n  a: { postgres: { dsn: 'host=h', partitions: 0 } }\n", "c.yaml:2:47: stores.a.postgres.partitions: \"0\": must be between 1 and 1024"},
		{"stores:\n  a: { postgres: { dsn: 'host=h', message_age: 1d } }\n", "c.yaml:2:48: stores.a.postgres.message_age: it needs cleanup: message-time: write that too, or leave it out"},
		{"stores:\n  a: { redis: { url: 'redis://h?a=b', prefix: '{a}' } }\n", "c.yaml:2:22: stores.a.redis.url: a query is not supported: use the fields of the store\nc.yaml:2:47: stores.a.redis.prefix: braces are not allowed"},
		{"stores:\n  a: { redis: { url: 'redis://h', compact: { window: 1h }, keep_origin: true } }\n", "c.yaml:2:73: stores.a.redis.keep_origin: the compact form cannot keep origins: leave out compact, or keep_origin"},
		{"stores:\n  a: { redis: { cluster: ['h:1'], username: u } }\n", "c.yaml:2:45: stores.a.redis.username: it needs a password: write password too"},
		{"stores: { k: { memory: {} } }\nlog: { duplicates: 1.5 }\n", "c.yaml:2:20: log.duplicates: \"1.5\": not a share: write a number from 0 to 1, like 0.01"},
		{"stores:\n  a: { filter: { rate: 1, expect: 0, window: 1d } }\n", "c.yaml:2:24: stores.a.filter.rate: \"1\": not a rate: write a number above 0 and below 1, like 0.001\nc.yaml:2:35: stores.a.filter.expect: \"0\": must be at least 1"},
	} {
		_, err := kind.All().Parse("c.yaml", []byte(c.text), noEnv)
		if err == nil || err.Error() != c.want {
			t.Errorf("in:\n%s\ngot:\n%v\nwant:\n%s\n", c.text, err, c.want)
		}
	}
}

func TestStoresThatDoNotFitTogetherAreRefused(t *testing.T) {
	t.Parallel()
	const some = `stores:
  cache: { memory: {} }
  other: { memory: {} }
  disk: { embedded: { path: x } }
  shared: { redis: { url: "redis://h" } }
  db: { postgres: { dsn: "host=h" } }
  seen: { filter: { rate: 0.01, expect: 1, window: 1d } }
`
	for _, c := range []struct{ text, want string }{
		{"s: { tiered: [cache] }", "a stack needs two layers or more"},
		{"s: { tiered: [] }", "the list is empty"},
		{"s: { tiered: [cache, dbb] }", `8:24: stores.s.tiered: there is no store "dbb": did you mean db?`},
		{"s: { tiered: [cache, zzzzzzzzz] }", `there is no store "zzzzzzzzz": the stores are cache, other, disk, shared, db, seen, s`},
		{"s: { tiered: [cache, cache, db] }", "cache is defined twice"},
		{"s: { tiered: [cache, s] }", "the store would be a layer of itself, s over s: take one of them out"},
		{"s: { tiered: [cache, t] }\n  t: { tiered: [other, s] }", "the store would be a layer of itself, s over t over s"},
		{"s: { tiered: [shared, cache] }", "cache cannot be the last layer, which decides: memory loses all keys when the process ends: put a durable store below it"},
		{"s: { tiered: { layers: [cache, seen], sees_every_writer: true } }", "seen cannot be the last layer, which decides: a filter drops some new messages: put an exact store below it"},
		{"s: { tiered: [db, disk] }", "db is postgres, which cannot be an upper layer: memory, redis and filter can"},
		{"s: { tiered: [cache, db] }\n  t: { tiered: [cache, disk] }", "cache is a layer of s already: a key that is done there would be a duplicate here"},
		{"s: { tiered: [seen, db] }", "a filter saves no work if other processes write to db without it: write { layers: [seen, db], sees_every_writer: true }"},
		{"s: { filter: { redis: db, rate: 0.1, expect: 1, window: 1d } }", "8:25: stores.s.filter.redis: db is postgres: name a store of the kind redis"},
		{"s: { filter: { redis: none, rate: 0.1, expect: 1, window: 1d } }", `there is no store "none"`},
		{`s: { redis: { url: "redis://h" } }`, "8:3: stores.s: it has the same server and prefix as shared (line 5), so a key that is done in one would be done in the other: give each store its own"},
		{"s: { embedded: { path: ./x } }", "it has the same directory as disk (line 4)"},
	} {
		_, err := kind.All().Parse("c.yaml", []byte(some+"  "+c.text+"\n"), noEnv)
		var wrong *schema.Error
		if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || !strings.Contains(wrong.Error(), c.want) {
			t.Errorf("%s\ngot:\n%v\nwant one problem with:\n%s", c.text, err, c.want)
		}
	}
	f := parse(t, some+"  s: { tiered: [other, shared, db] }\n  t: { tiered: [cache, s] }\n")
	var below []string
	for _, s := range f.Stack("t") {
		below = append(below, s.Name)
	}
	if got := strings.Join(below, " "); got != "t cache s other shared db" || len(f.Stack("none")) != 0 {
		t.Errorf("below t: %s", got)
	}
	if above, ok := f.LayerOf("shared"); !ok || above.Name != "s" {
		t.Errorf("shared is a layer of %v, %t", above, ok)
	}
	if above, ok := f.LayerOf("db"); ok {
		t.Errorf("db decides, and is no layer of %v", above)
	}
}

func TestReferencesAreResolvedAfterParsing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	password := write("password", "from: a } file\r\n")
	write("empty", "\n")
	write("large", strings.Repeat("x", schema.MaxSecretBytes+1))
	env := func(name string) string {
		return map[string]string{"SET": "value", "YAML": "a\nb: {", "REF": "${env:SET}"}[name]
	}
	for _, c := range []struct{ written, want string }{
		{"${env:SET}", "value"},
		{"a${env:SET}b${env:SET}", "avaluebvalue"},
		{"${env:UNSET:-default}", "default"},
		{"${env:SET:-default}", "value"},
		{"x${env:UNSET:-}", "x"},
		{"${env:YAML}", "a\nb: {"},
		{"${env:REF}", "${env:SET}"},
		{"$${env:SET}", "${env:SET}"},
		{"$ {$", "$ {$"},
		{"${file:" + password + "}", "from: a } file"},
		{"${file:password}", "from: a } file"},
	} {
		f, err := kind.All().Parse(filepath.Join(dir, "c.yaml"), []byte("stores: { a: { redis: { cluster: ['h:1'], password: p, username: '"+c.written+"' } } }"), env)
		if err != nil {
			t.Errorf("%s: %v", c.written, err)
			continue
		}
		if got := spec[*redis.Store](t, f, "a").Username; got != c.want {
			t.Errorf("%s: got %q, want %q", c.written, got, c.want)
		}
	}
	for _, c := range []struct{ written, want string }{
		{"${env:UNSET}", "the environment variable UNSET is not set, or empty: set it, or write ${env:UNSET:-default}"},
		{"${SET}", "${SET} is not a reference: write ${env:SET} for the environment variable, or $${ for the text itself"},
		{"${vault:x}", "is not a known reference"},
		{"${env:}", "does not name an environment variable"},
		{"${env:A B}", "does not name an environment variable"},
		{"${env:SET", "a reference ${… has no }"},
		{"${file:" + dir + "/none}", "${file:" + dir + "/none} cannot be read: no such file or directory"},
		{"${file:" + dir + "}", "cannot be read: is a directory"},
		{"${file:empty}", "is empty"},
		{"${file:large}", "is larger than 64 KiB"},
		{"${file:}", "names no file"},
	} {
		_, err := kind.All().Parse(filepath.Join(dir, "c.yaml"), []byte("stores: { a: { redis: { cluster: ['h:1'], password: p, username: '"+c.written+"' } } }"), env)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "c.yaml:1:66: stores.a.redis.username: ") {
			t.Errorf("%s: got %v, want %s", c.written, err, c.want)
		}
	}
}

func TestEveryProblemIsReportedAtOnceInTheOrderOfTheFile(t *testing.T) {
	t.Parallel()
	_, err := kind.All().Parse("c.yaml", []byte(`stores:
  a: { memory: { max_keys: x } }
  b: { tiered: [a, nope] }
  c: { embedded: { pth: y } }
queues: {}
`), noEnv)
	var wrong *schema.Error
	if !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	var lines []int
	for _, p := range wrong.Problems {
		lines = append(lines, p.Place.Line)
	}
	if len(lines) != 5 || lines[0] != 2 || lines[1] != 3 || lines[2] != 4 || lines[3] != 4 || lines[4] != 5 {
		t.Errorf("lines %v:\n%v", lines, err)
	}
}

func TestFileThatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "none.yaml")
	_, err := kind.All().Read(name, noEnv)
	if err == nil || err.Error() != name+": no such file or directory" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err = kind.All().Read(filepath.Dir(name), noEnv); err == nil || err.Error() != filepath.Dir(name)+": is a directory" {
		t.Errorf("got %v", err)
	}
}

// TestTheDocumentedConfigurationIsRight reads the example in docs/cli.md. It
// checks that the page has each field of each store kind.
func TestTheDocumentedConfigurationIsRight(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("postgres://app@localhost/app\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	example = strings.ReplaceAll(example, "/run/secrets/database-url", secret)
	if _, err := kind.All().Parse("c.yaml", []byte(example), func(string) string { return "x" }); err != nil || len(example) < 100 {
		t.Errorf("%v in:\n%s", err, example)
	}
	for _, newStore := range kind.All().Stores {
		name := newStore().Kind()
		_, row, _ := strings.Cut(string(text), "\n| `"+name+"` |")
		row, _, _ = strings.Cut(row, "|\n")
		_, err := kind.All().Parse("c.yaml", []byte("stores: { a: { "+name+": { zzzzzzzzz: 1 } } }"), noEnv)
		_, list, _ := strings.Cut(fmt.Sprint(err), "write one of ")
		list, _, _ = strings.Cut(list, "\n")
		fields := strings.Split(list, ", ")
		for _, field := range fields {
			if !strings.Contains(row, field) || field == "" {
				t.Errorf("the row of %s lacks %q", name, field)
			}
		}
	}
}
