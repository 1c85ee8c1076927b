package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

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
		s.Spec = invalid{}
		v.value(e.value, path).kind(storeMapping(&s.Spec), "store", "{ embedded: { path: ./keys } }")
		list = append(list, s)
	}
	return list
}

// invalid is what could not be read. A file that has one is refused; until then
// the name of a store is known to whoever refers to it.
type invalid struct{}

func (invalid) Kind() string { return "" }

// storeMapping is the one kind that a store is.
func storeMapping(target *Spec) mapping {
	return kindsOf(
		kindField("memory", target, memory, "Keys in the memory of the process, which forgets them at its end."),
		kindField("embedded", target, embedded, "Keys in a directory, durable, for one process at a time."),
		kindField("redis", target, redis, "Keys in Redis or Valkey, shared by processes. One of `url`, `cluster` and `sentinel` says where."),
		kindField("postgres", target, postgres, "Keys in PostgreSQL, shared by processes, and in one transaction with the effects of a `postgres` sink where that is wanted."),
		tieredField(target),
		kindField("filter", target, filter, "Keys in a few bits each, with a stated error: as a layer above an exact store, or alone under a pipeline with `lossy: true`."),
	)
}

// kindsOf is a mapping that has one of several kinds.
func kindsOf(kinds ...field) mapping {
	m := mapping{fields: kinds}
	m.oneOf = [][]string{m.names()}
	return m
}

// kind reads which of several kinds something is.
func (v value) kind(m mapping, what, example string) {
	if text, ok := v.node.(*ast.StringNode); ok {
		hint := "write the kind of the " + what + " and its settings, as in " + example
		if slices.Contains(m.names(), text.Value) {
			hint = "write { " + text.Value + ": {} } with its settings between the inner braces"
		}
		v.wrong("fields are wanted, not a text: %s", hint)
		return
	}
	v.mapping(m)
}

func isName(name string) bool {
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

func memory() (Spec, mapping) {
	m := &Memory{}
	return m, mapping{fields: []field{
		countField("max_keys", &m.MaxKeys, "The most keys it holds; a store that is full refuses, and forgets nothing for it.").means("no limit"),
		keepIDsField(&m.KeepIDs),
		maxResultField(&m.MaxResult).means("16MiB"),
	}}
}

func keepIDsField(target *bool) field {
	return truthField("keep_ids", target, "Keep scope and id of each key readable, beside its digest.").means("false")
}

func maxResultField(target *int64) field {
	return sizeField("max_result", target, "The longest result that is kept for duplicates.")
}

func embedded() (Spec, mapping) {
	e := &Embedded{}
	return e, mapping{
		fields: []field{
			pathField("path", &e.Path, "Directory of the store. It is made if it is not there.").need(),
			choiceField("fsync", &e.Fsync, "When what was answered is on the disk: before the answer, every `fsync_interval`, or when the system pleases. Only `always` survives loss of power whole.",
				"always", "interval", "never").or("always"),
			durationField("fsync_interval", &e.FsyncInterval, "How often to sync with `fsync: interval`.").means("100ms"),
			keepIDsField(&e.KeepIDs),
			maxResultField(&e.MaxResult).means("1MiB"),
		},
		check: func(_ value, there members) {
			if interval, ok := there["fsync_interval"]; ok && e.Fsync != "interval" {
				interval.wrong("it means nothing with fsync: %s: write fsync: interval, or leave it out", e.Fsync)
			}
		},
	}
}

func redis() (Spec, mapping) {
	s := &Redis{}
	return s, mapping{
		fields: []field{
			{name: "url", doc: "Address of one server, `redis://user:password@host:6379/0`, or `rediss://` for TLS.", form: form{scalar: aAddress}, read: func(v value) { v.redisURL(&s.URL) }},
			addressesField("cluster", &s.Cluster, "Addresses of some nodes of a cluster, `host:port`."),
			partField("sentinel", func() mapping { s.Sentinel = &Sentinel{}; return sentinel(s.Sentinel) }, "Sentinels, which know the primary."),
			textField("username", &s.Username, "User name, with `cluster` and `sentinel`."),
			secretField("password", &s.Password, "Password, with `cluster` and `sentinel`."),
			numberField("database", &s.Database, 0, 1<<20, "Number of the database, with `sentinel`.").means("0"),
			tlsField(&s.TLS),
			durationField("connect_timeout", &s.ConnectTimeout, "How long making a connection may take.").means("2s"),
			durationField("timeout", &s.Timeout, "How long one call may take.").means("3s"),
			{name: "prefix", doc: "What the names of its keys begin with.", form: form{scalar: aText}, shown: "semel:", read: func(v value) { v.redisPrefix(&s.Prefix) }},
			textField("legacy_prefix", &s.LegacyPrefix, "Prefix of markers of an earlier program, `<prefix><id>`, which count as done.").means("none"),
			choiceField("persistence", &s.Persistence, "What the server is known to keep over its end: nothing for sure, what its log has (`appendfsync everysec`), or all (`appendfsync always`).",
				"volatile", "logged", "synced").or("volatile"),
			keepIDsField(&s.KeepIDs),
			maxResultField(&s.MaxResult).means("1MiB"),
			partField("compact", func() mapping { s.Compact = &Compact{}; return compact(s.Compact) }, "Keep keys that are done in 64 bits each.").means("off"),
		},
		oneOf: [][]string{{"url", "cluster", "sentinel"}},
		check: func(_ value, there members) { checkRedis(s, there) },
	}
}

func checkRedis(s *Redis, there members) {
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

func sentinel(s *Sentinel) mapping {
	return mapping{fields: []field{
		addressesField("addresses", &s.Addresses, "Addresses of the Sentinels, `host:port`.").need(),
		textField("master", &s.Master, "Name of the set of servers they watch.").need(),
		textField("username", &s.Username, "User name at the Sentinels."),
		secretField("password", &s.Password, "Password at the Sentinels."),
	}}
}

// addressesField is a list of host:port.
func addressesField(name string, target *[]string, doc string) field {
	return listField(name, form{scalar: aText}, func(v value) {
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
	}, doc)
}

func isHostPort(address string) bool {
	i := strings.LastIndexByte(address, ':')
	if i <= 0 || strings.Contains(address, "/") || strings.Contains(address, "@") {
		return false
	}
	port, err := strconv.ParseUint(address[i+1:], 10, 16)
	return err == nil && port > 0
}

// tlsField is how a connection to a server is secured.
func tlsField(target **TLS) field {
	return partField("tls", func() mapping {
		t := &TLS{}
		*target = t
		return mapping{
			fields: []field{
				pathField("ca", &t.CA, "Certificates of the authorities to trust.").means("the system's"),
				pathField("certificate", &t.Certificate, "Certificate to show."),
				pathField("key", &t.Key, "Its key."),
				textField("server_name", &t.ServerName, "Name that the server's certificate must have.").means("the host's"),
				truthField("insecure_skip_verify", &t.InsecureSkipVerify, "Believe any certificate: whoever stands between can read and answer.").means("false"),
			},
			check: func(v value, there members) {
				if (t.Certificate == "") != (t.Key == "") && there["certificate"].node != nil != (there["key"].node != nil) {
					v.wrong("certificate and key belong together: name both")
				}
			},
		}
	}, "TLS to the server. It may be empty.").means("off").titled("TLS to a server")
}

func compact(c *Compact) mapping {
	return mapping{
		fields: []field{
			durationField("window", &c.Window, "How long keys are remembered.").need(),
			numberField("slices", &c.Slices, 1, 64, "How many parts the window has: keys are forgotten a part at a time.").means("4"),
			countField("expect", &c.Expect, "How many keys a window has.").means("1,048,576"),
			durationField("grace", &c.Grace, "How long a key keeps its full record first.").means("30s"),
		},
		check: func(_ value, there members) {
			if c.Grace > 0 && c.Grace >= c.Window && c.Window > 0 {
				there["grace"].wrong("it must be shorter than the window")
			}
		},
	}
}

func postgres() (Spec, mapping) {
	p := &Postgres{}
	return p, mapping{
		fields: []field{
			dsnField(&p.DSN).need(),
			identifierField("schema", &p.Schema, 63, "Schema of its tables.").means("public"),
			identifierField("prefix", &p.Prefix, 40, "What the names of its tables begin with.").means("semel_"),
			choiceField("cleanup", &p.Cleanup, "How expired keys go. It counts when the tables are made, and cannot be changed later.",
				"delete", "generations", "message-time").means("what the tables were made for; `delete` when they are made"),
			numberField("cleanup_rate", &p.CleanupRate, 1, 1_000_000_000, "The most rows a second that a clean-up deletes or moves.").means("no limit but that it works a fifth of the time"),
			hoursField("cleanup_hours", &p.CleanupHours, "Hours of the day, by UTC, in which keys are cleaned up, such as those of little load.").means("all day"),
			durationField("generation", &p.Generation, "How long a generation lasts, with `cleanup: generations`.").means("24h"),
			durationField("message_age", &p.MessageAge, "How old a UUIDv7 or ULID may be, with `cleanup: message-time`. It counts when the tables are made.").means("7d"),
			numberField("partitions", &p.Partitions, 1, 1024, "Into how many parts the table is divided. It counts when the tables are made.").means("none with `delete`, 32 with `message-time`"),
			truthField("prepare", &p.Prepare, "Have statements prepared by name, which not every pooler bears.").means("false"),
			keepIDsField(&p.KeepIDs),
			maxResultField(&p.MaxResult).means("1MiB"),
		},
		check: func(_ value, there members) {
			if generation, ok := there["generation"]; ok && p.Cleanup != "generations" {
				generation.wrong("it is for cleanup: generations: write that too, or leave it out")
			}
			if age, ok := there["message_age"]; ok && p.Cleanup != "message-time" {
				age.wrong("it is for cleanup: message-time: write that too, or leave it out")
			}
			if partitions, ok := there["partitions"]; ok && p.Cleanup == "generations" {
				partitions.wrong("generations have tables of their own: leave it out")
			}
		},
	}
}

// dsnField is the address of a PostgreSQL database.
func dsnField(target *Secret) field {
	return field{
		name: "dsn", doc: "Address of the database, as a URL or as `host=… dbname=…`. In it `pool_max_conns` is the most connections.",
		form: form{scalar: aAddress}, read: func(v value) { v.postgresDSN(target) },
	}
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

// identifierField is a name in SQL, one that needs no quotes.
func identifierField(name string, target *string, most int, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aText}, read: func(v value) { v.identifier(target, most) }}
}

func (v value) identifier(target *string, most int) {
	quantity(v, target, "a name", func(text string) (string, error) {
		switch {
		case text == "" || len(text) > most:
			return "", fmt.Errorf("write 1 to %d letters", most)
		case !isIdentifier(text, most):
			return "", fmt.Errorf("write lower-case letters, digits and _, a letter first")
		}
		return text, nil
	})
}

func isIdentifier(text string, most int) bool {
	for i, c := range []byte(text) {
		if c != '_' && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return text != "" && len(text) <= most
}

// tieredField is a list of names, or fields one of which is that list.
func tieredField(target *Spec) field {
	names := form{element: &form{scalar: aStoreName}}
	return field{
		name: "tiered",
		doc:  "Layers above one durable store: a list of names from the top, the one that decides last, or fields. Above the last layer stand `memory`, `redis` and `filter`.",
		form: form{either: []form{names, {members: func() mapping { return tiered(&Tiered{}) }}}},
		read: func(v value) {
			t := &Tiered{OnStoreError: "stop"}
			*target = t
			if _, ok := v.node.(*ast.SequenceNode); ok {
				v.references(&t.Layers)
				return
			}
			v.mapping(tiered(t))
		},
	}
}

func tiered(t *Tiered) mapping {
	return mapping{fields: []field{
		listField("layers", form{scalar: aStoreName}, func(v value) { v.references(&t.Layers) }, "The names, from the top; the last one decides.").need(),
		choiceField("on_store_error", &t.OnStoreError, "While the last layer does not answer: refuse, ask again, or let every message through unremembered.", "stop", "wait", "pass").or("stop"),
		windowField("max_age", &t.MaxAge, "How long a copy in a layer answers without the store below.").means("10m"),
		durationField("layer_timeout", &t.LayerTimeout, "How long one call of an upper layer may take.").means("250ms"),
		truthField("sees_every_writer", &t.SeesEveryWriter, "No other process writes to the last layer, or all who do share the filter. A `filter` layer needs it.").means("false"),
	}}
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

func filter() (Spec, mapping) {
	f := &Filter{}
	return f, mapping{fields: []field{
		storeField("redis", &f.Redis, "Store of the kind `redis` on whose server it is.").means("in memory"),
		rateField("rate", &f.Rate, "How many of the new keys it takes for known, above 0 and below 1.").need(),
		countField("expect", &f.Expect, "How many keys a window has.").need(),
		durationField("window", &f.Window, "How long keys are remembered.").need(),
	}}
}
