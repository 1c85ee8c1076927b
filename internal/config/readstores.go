package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// kinds are the kinds of stores and what reads each.
func kinds() []kind {
	return []kind{
		{"memory", value.memory},
		{"embedded", value.embedded},
		{"redis", value.redis},
		{"postgres", value.postgres},
		{"tiered", value.tiered},
		{"filter", value.filter},
	}
}

type kind struct {
	name string
	read func(value) Spec
}

// stores reads the section of that name.
func (v value) stores() []*Store {
	var list []*Store
	before := len(v.problems)
	entries, ok := v.entries()
	if ok && len(entries) == 0 && len(v.problems) == before {
		v.wrong("it names no store")
	}
	for _, e := range entries {
		path := within(v.path, e.name)
		if !isName(e.name) {
			v.reader.wrong(e.at, "%s: this is no name for a store: write letters, digits, - and _, at most 64", v.path)
			continue
		}
		at := e.at
		at.File = v.name
		s := &Store{Name: e.name, At: at}
		if s.Spec = v.value(e.value, path).spec(); s.Spec == nil {
			s.Spec = invalid{}
		}
		list = append(list, s)
	}
	return list
}

// invalid is a store that could not be read. A file that has one is refused;
// until then its name is known to whoever refers to it.
type invalid struct{}

func (invalid) Kind() string { return "" }

// spec reads the one kind that a store is.
func (v value) spec() Spec {
	var (
		found Spec
		names []string
		known []field
	)
	for _, k := range kinds() {
		names = append(names, k.name)
		known = append(known, field{k.name, func(v value) { found = k.read(v) }})
	}
	if text, ok := v.node.(*ast.StringNode); ok {
		v.wrong("fields are wanted, not a text: %s", kindHint(text.Value, names))
		return nil
	}
	v.oneOf(v.fields(known...), names...)
	return found
}

// kindHint shows how a kind that was written alone is written.
func kindHint(word string, names []string) string {
	if slices.Contains(names, word) {
		return "write { " + word + ": {} } with its settings between the inner braces"
	}
	return "write the kind of the store and its settings, as in { embedded: { path: ./keys } }"
}

func isName(name string) bool {
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

func (v value) memory() Spec {
	m := &Memory{}
	v.fields(
		field{"max_keys", func(v value) { v.count(&m.MaxKeys) }},
		field{"keep_ids", func(v value) { v.truth(&m.KeepIDs) }},
		field{"max_result", func(v value) { v.size(&m.MaxResult) }},
	)
	return m
}

func (v value) embedded() Spec {
	e := &Embedded{Fsync: "always"}
	there := v.fields(
		field{"path", func(v value) { v.filePath(&e.Path) }},
		field{"fsync", func(v value) { v.choice(&e.Fsync, "always", "interval", "never") }},
		field{"fsync_interval", func(v value) { v.duration(&e.FsyncInterval) }},
		field{"keep_ids", func(v value) { v.truth(&e.KeepIDs) }},
		field{"max_result", func(v value) { v.size(&e.MaxResult) }},
	)
	v.require(there, "path")
	if interval, ok := there["fsync_interval"]; ok && e.Fsync != "interval" {
		interval.wrong("it means nothing with fsync: %s: write fsync: interval, or leave it out", e.Fsync)
	}
	return e
}

func (v value) redis() Spec {
	s := &Redis{Persistence: "volatile"}
	there := v.fields(
		field{"url", func(v value) { v.redisURL(&s.URL) }},
		field{"cluster", func(v value) { v.addresses(&s.Cluster) }},
		field{"sentinel", func(v value) { s.Sentinel = v.sentinel() }},
		field{"username", func(v value) { v.text(&s.Username) }},
		field{"password", func(v value) { v.secret(&s.Password) }},
		field{"database", func(v value) { v.number(&s.Database, 0, 1<<20) }},
		field{"tls", func(v value) { s.TLS = v.tls() }},
		field{"connect_timeout", func(v value) { v.duration(&s.ConnectTimeout) }},
		field{"timeout", func(v value) { v.duration(&s.Timeout) }},
		field{"prefix", func(v value) { v.redisPrefix(&s.Prefix) }},
		field{"legacy_prefix", func(v value) { v.text(&s.LegacyPrefix) }},
		field{"persistence", func(v value) { v.choice(&s.Persistence, "volatile", "logged", "synced") }},
		field{"keep_ids", func(v value) { v.truth(&s.KeepIDs) }},
		field{"max_result", func(v value) { v.size(&s.MaxResult) }},
		field{"compact", func(v value) { s.Compact = v.compact() }},
	)
	v.oneOf(there, "url", "cluster", "sentinel")
	if _, hasURL := there["url"]; hasURL {
		for _, name := range []string{"username", "password", "database"} {
			if of, ok := there[name]; ok {
				of.wrong("the url has room for it, redis://user:password@host:port/database: leave one of the two")
			}
		}
	}
	if username, ok := there["username"]; ok && s.Password.IsZero() && s.URL.IsZero() {
		username.wrong("there is no password for it")
	}
	if database, ok := there["database"]; ok && s.Cluster != nil && s.Database != 0 {
		database.wrong("a cluster has database 0 alone")
	}
	if _, ok := there["tls"]; ok && hasScheme(s.URL.Reveal(), "redis", "valkey") {
		there["tls"].wrong("a url that begins with redis:// uses no TLS: write rediss://")
	}
	return s
}

func (v value) redisURL(target *Secret) {
	v.address(target)
	switch text := target.Reveal(); {
	case text == "":
	case !hasScheme(text, "redis", "rediss", "valkey", "valkeys"):
		v.wrong("it is no address of a Redis server: write redis://user:password@host:6379/0, or rediss:// for TLS")
	case strings.HasPrefix(target.String(), hiddenText):
		v.wrong("it cannot be understood: in a password write %%2F for /, %%3F for ?, %%23 for # and %%40 for @")
	case strings.ContainsAny(text, "?#"):
		v.wrong("it has a query: what is to be set beside user, password, host and database has a field of its own")
	}
}

// redisPrefix reads what names in Redis begin with. Braces choose the slot of a
// name in a cluster, which is the store's to choose.
func (v value) redisPrefix(target *string) {
	v.text(target)
	if strings.ContainsAny(*target, "{}") {
		v.wrong("it must not have braces")
	}
}

func hasScheme(text string, schemes ...string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && slices.Contains(schemes, scheme)
}

func (v value) sentinel() *Sentinel {
	s := &Sentinel{}
	there := v.fields(
		field{"addresses", func(v value) { v.addresses(&s.Addresses) }},
		field{"master", func(v value) { v.text(&s.Master) }},
		field{"username", func(v value) { v.text(&s.Username) }},
		field{"password", func(v value) { v.secret(&s.Password) }},
	)
	v.require(there, "addresses", "master")
	return s
}

// addresses reads a list of host:port.
func (v value) addresses(target *[]string) {
	v.list(func(element value) {
		var address string
		element.text(&address)
		if address == "" {
			return
		}
		if !isHostPort(address) {
			element.wrong("write it like host:6379")
			return
		}
		*target = append(*target, address)
	})
}

func isHostPort(address string) bool {
	i := strings.LastIndexByte(address, ':')
	if i <= 0 || strings.Contains(address, "/") || strings.Contains(address, "@") {
		return false
	}
	port, err := strconv.ParseUint(address[i+1:], 10, 16)
	return err == nil && port > 0
}

func (v value) tls() *TLS {
	t := &TLS{}
	there := v.fields(
		field{"ca", func(v value) { v.filePath(&t.CA) }},
		field{"certificate", func(v value) { v.filePath(&t.Certificate) }},
		field{"key", func(v value) { v.filePath(&t.Key) }},
		field{"server_name", func(v value) { v.text(&t.ServerName) }},
		field{"insecure_skip_verify", func(v value) { v.truth(&t.InsecureSkipVerify) }},
	)
	if (t.Certificate == "") != (t.Key == "") && there["certificate"].node != nil != (there["key"].node != nil) {
		v.wrong("certificate and key belong together: name both")
	}
	return t
}

func (v value) compact() *Compact {
	c := &Compact{}
	there := v.fields(
		field{"window", func(v value) { v.duration(&c.Window) }},
		field{"slices", func(v value) { v.number(&c.Slices, 1, 64) }},
		field{"expect", func(v value) { v.count(&c.Expect) }},
		field{"grace", func(v value) { v.duration(&c.Grace) }},
	)
	v.require(there, "window")
	if c.Grace > 0 && c.Grace >= c.Window && c.Window > 0 {
		there["grace"].wrong("it must be shorter than the window")
	}
	return c
}

func (v value) postgres() Spec {
	p := &Postgres{}
	there := v.fields(
		field{"dsn", func(v value) { v.postgresDSN(&p.DSN) }},
		field{"schema", func(v value) { v.identifier(&p.Schema, 63) }},
		field{"prefix", func(v value) { v.identifier(&p.Prefix, 40) }},
		field{"cleanup", func(v value) { v.choice(&p.Cleanup, "delete", "generations", "message-time") }},
		field{"generation", func(v value) { v.duration(&p.Generation) }},
		field{"message_age", func(v value) { v.duration(&p.MessageAge) }},
		field{"partitions", func(v value) { v.number(&p.Partitions, 1, 1024) }},
		field{"prepare", func(v value) { v.truth(&p.Prepare) }},
		field{"keep_ids", func(v value) { v.truth(&p.KeepIDs) }},
		field{"max_result", func(v value) { v.size(&p.MaxResult) }},
	)
	v.require(there, "dsn")
	if generation, ok := there["generation"]; ok && p.Cleanup != "generations" {
		generation.wrong("it is for cleanup: generations: write that too, or leave it out")
	}
	if age, ok := there["message_age"]; ok && p.Cleanup != "message-time" {
		age.wrong("it is for cleanup: message-time: write that too, or leave it out")
	}
	if partitions, ok := there["partitions"]; ok && p.Cleanup == "generations" {
		partitions.wrong("generations have tables of their own: leave it out")
	}
	return p
}

func (v value) postgresDSN(target *Secret) {
	v.address(target)
	text := target.Reveal()
	switch {
	case text == "":
	case strings.HasPrefix(target.String(), hiddenText), twoAts(text):
		v.wrong("it cannot be understood: in the password of a URL write %%2F for /, %%3F for ?, %%23 for # and %%40 for @; elsewhere put a value with blanks in single quotes")
	case strings.Contains(text, "://") && !hasScheme(text, "postgres", "postgresql"):
		v.wrong("it is no address of a PostgreSQL server: write postgres://user:password@host:5432/database")
	}
}

// twoAts reports whether a URL has an @ in its password that is not written as
// %40. The driver ends the password at the first one, and looks up what is
// behind it as the name of a host.
func twoAts(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	authority, _, _ := strings.Cut(rest, "/")
	return strings.Count(authority, "@") > 1
}

// identifier reads a name in SQL, one that needs no quotes.
func (v value) identifier(target *string, most int) {
	quantity(v, target, "a name", func(text string) (string, error) {
		for i, c := range []byte(text) {
			if c != '_' && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
				return "", fmt.Errorf("write lower-case letters, digits and _, a letter first")
			}
		}
		if text == "" || len(text) > most {
			return "", fmt.Errorf("write 1 to %d letters", most)
		}
		return text, nil
	})
}

// tiered reads a list of names, or fields one of which is that list.
func (v value) tiered() Spec {
	t := &Tiered{OnStoreError: "stop"}
	if _, ok := v.node.(*ast.SequenceNode); ok {
		v.references(&t.Layers)
		return t
	}
	there := v.fields(
		field{"layers", func(v value) { v.references(&t.Layers) }},
		field{"on_store_error", func(v value) { v.choice(&t.OnStoreError, "stop", "wait", "pass") }},
		field{"max_age", func(v value) { v.window(&t.MaxAge) }},
		field{"layer_timeout", func(v value) { v.duration(&t.LayerTimeout) }},
		field{"sees_every_writer", func(v value) { v.truth(&t.SeesEveryWriter) }},
	)
	v.require(there, "layers")
	return t
}

func (v value) references(target *[]Reference) {
	v.list(func(element value) {
		if r := element.reference(); r.Name != "" {
			*target = append(*target, r)
		}
	})
}

// reference reads the name of a store.
func (v value) reference() (r Reference) {
	v.text(&r.Name)
	r.At = v.at
	r.At.File = v.name
	return r
}

func (v value) filter() Spec {
	f := &Filter{}
	there := v.fields(
		field{"redis", func(v value) { f.Redis = v.reference() }},
		field{"rate", func(v value) { v.rate(&f.Rate) }},
		field{"expect", func(v value) { v.count(&f.Expect) }},
		field{"window", func(v value) { v.duration(&f.Window) }},
	)
	v.require(there, "rate", "expect", "window")
	return f
}

func (v value) rate(target *float64) {
	quantity(v, target, "a rate", func(text string) (float64, error) {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate > 0 && rate < 1) {
			return 0, fmt.Errorf("not a rate: write a number above 0 and below 1, like 0.001")
		}
		return rate, nil
	})
}
