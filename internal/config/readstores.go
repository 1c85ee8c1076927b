package config

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel/internal/schema"
)

// stores reads the section of that name.
func readStores(v schema.Value) []*Store {
	var list []*Store
	before := len(v.Problems)
	entries, ok := v.Entries()
	if ok && len(entries) == 0 && len(v.Problems) == before {
		v.Wrong("it names no store")
	}
	for _, e := range entries {
		path := schema.Within(v.Path, e.Name)
		if !schema.IsName(e.Name) {
			v.WrongAt(e.At, "%s: this is no name for a store: write letters, digits, - and _, at most 64", v.Path)
			continue
		}
		at := e.At
		at.File = v.Name
		s := &Store{Name: e.Name, At: at}
		s.Spec = invalid{}
		v.Value(e.Value, path).Kind(storeMapping(&s.Spec), "store", "{ embedded: { path: ./keys } }")
		list = append(list, s)
	}
	return list
}

// invalid is what could not be read. A file that has one is refused; until then
// the name of a store is known to whoever refers to it.
type invalid struct{}

func (invalid) Kind() string { return "" }

// storeMapping is the one kind that a store is.
func storeMapping(target *Spec) schema.Mapping {
	return schema.KindsOf(
		schema.KindField("memory", target, memory, "Keys in the memory of the process, which forgets them at its end."),
		schema.KindField("embedded", target, embedded, "Keys in a directory, durable, for one process at a time."),
		schema.KindField("redis", target, redis, "Keys in Redis or Valkey, shared by processes. One of `url`, `cluster` and `sentinel` says where."),
		schema.KindField("postgres", target, postgres, "Keys in PostgreSQL, shared by processes, and in one transaction with the effects of a `postgres` sink where that is wanted."),
		tieredField(target),
		schema.KindField("filter", target, filter, "Keys in a few bits each, with a stated error: as a layer above an exact store, or alone under a pipeline with `lossy: true`."),
	)
}

func memory() (Spec, schema.Mapping) {
	m := &Memory{}
	return m, schema.Mapping{Fields: []schema.Field{
		schema.CountField("max_keys", &m.MaxKeys, "The most keys it holds; a store that is full refuses, and forgets nothing for it.").Means("no limit"),
		keepIDsField(&m.KeepIDs),
		maxResultField(&m.MaxResult).Means("16MiB"),
	}}
}

func keepIDsField(target *bool) schema.Field {
	return schema.TruthField("keep_ids", target, "Keep scope and id of each key readable, beside its digest.").Means("false")
}

func maxResultField(target *int64) schema.Field {
	return schema.SizeField("max_result", target, "The longest result that is kept for duplicates.")
}

func embedded() (Spec, schema.Mapping) {
	e := &Embedded{}
	return e, schema.Mapping{
		Fields: []schema.Field{
			schema.PathField("path", &e.Path, "Directory of the store. It is made if it is not there.").Need(),
			schema.ChoiceField("fsync", &e.Fsync, "When what was answered is on the disk: before the answer, every `fsync_interval`, or when the system pleases. Only `always` survives loss of power whole.",
				"always", "interval", "never").Or("always"),
			schema.DurationField("fsync_interval", &e.FsyncInterval, "How often to sync with `fsync: interval`.").Means("100ms"),
			keepIDsField(&e.KeepIDs),
			maxResultField(&e.MaxResult).Means("1MiB"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if interval, ok := there["fsync_interval"]; ok && e.Fsync != "interval" {
				interval.Wrong("it means nothing with fsync: %s: write fsync: interval, or leave it out", e.Fsync)
			}
		},
	}
}

func redis() (Spec, schema.Mapping) {
	s := &Redis{}
	return s, schema.Mapping{
		Fields: []schema.Field{
			{Name: "url", Doc: "Address of one server, `redis://user:password@host:6379/0`, or `rediss://` for TLS.", Form: schema.Form{Scalar: schema.ScalarAddress}, Read: func(v schema.Value) { redisURL(v, &s.URL) }},
			schema.AddressesField("cluster", &s.Cluster, "Addresses of some nodes of a cluster, `host:port`."),
			schema.PartField("sentinel", func() schema.Mapping { s.Sentinel = &Sentinel{}; return sentinel(s.Sentinel) }, "Sentinels, which know the primary."),
			schema.TextField("username", &s.Username, "User name, with `cluster` and `sentinel`."),
			schema.SecretField("password", &s.Password, "Password, with `cluster` and `sentinel`."),
			schema.NumberField("database", &s.Database, 0, 1<<20, "Number of the database, with `sentinel`.").Means("0"),
			tlsField(&s.TLS),
			schema.DurationField("connect_timeout", &s.ConnectTimeout, "How long making a connection may take.").Means("2s"),
			schema.DurationField("timeout", &s.Timeout, "How long one call may take.").Means("3s"),
			{Name: "prefix", Doc: "What the names of its keys begin with.", Form: schema.Form{Scalar: schema.ScalarText}, Shown: "semel:", Read: func(v schema.Value) { redisPrefix(v, &s.Prefix) }},
			schema.TextField("legacy_prefix", &s.LegacyPrefix, "Prefix of markers of an earlier program, `<prefix><id>`, which count as done.").Means("none"),
			schema.ChoiceField("persistence", &s.Persistence, "What the server is known to keep over its end: nothing for sure, what its log has (`appendfsync everysec`), or all (`appendfsync always`).",
				"volatile", "logged", "synced").Or("volatile"),
			keepIDsField(&s.KeepIDs),
			maxResultField(&s.MaxResult).Means("1MiB"),
			schema.PartField("compact", func() schema.Mapping { s.Compact = &Compact{}; return compact(s.Compact) }, "Keep keys that are done in 64 bits each.").Means("off"),
		},
		OneOf: [][]string{{"url", "cluster", "sentinel"}},
		Check: func(_ schema.Value, there schema.Members) { checkRedis(s, there) },
	}
}

func checkRedis(s *Redis, there schema.Members) {
	if _, hasURL := there["url"]; hasURL {
		for _, name := range []string{"username", "password", "database"} {
			if of, ok := there[name]; ok {
				of.Wrong("the url has room for it, redis://user:password@host:port/database: leave one of the two")
			}
		}
	}
	if username, ok := there["username"]; ok && s.Password.IsZero() && s.URL.IsZero() {
		username.Wrong("there is no password for it")
	}
	if database, ok := there["database"]; ok && s.Cluster != nil && s.Database != 0 {
		database.Wrong("a cluster has database 0 alone")
	}
	if _, ok := there["tls"]; ok && hasScheme(s.URL.Reveal(), "redis", "valkey") {
		there["tls"].Wrong("a url that begins with redis:// uses no TLS: write rediss://")
	}
}

func redisURL(v schema.Value, target *schema.Secret) {
	v.Address(target)
	switch text := target.Reveal(); {
	case text == "":
	case !hasScheme(text, "redis", "rediss", "valkey", "valkeys"):
		v.Wrong("it is no address of a Redis server: write redis://user:password@host:6379/0, or rediss:// for TLS")
	case strings.HasPrefix(target.String(), schema.HiddenText):
		v.Wrong("it cannot be understood: in a password write %%2F for /, %%3F for ?, %%23 for # and %%40 for @")
	case strings.ContainsAny(text, "?#"):
		v.Wrong("it has a query: what is to be set beside user, password, host and database has a field of its own")
	}
}

// redisPrefix reads what names in Redis begin with. Braces choose the slot of a
// name in a cluster, which is the store's to choose.
func redisPrefix(v schema.Value, target *string) {
	v.Text(target)
	if strings.ContainsAny(*target, "{}") {
		v.Wrong("it must not have braces")
	}
}

func hasScheme(text string, schemes ...string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && slices.Contains(schemes, scheme)
}

func sentinel(s *Sentinel) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.AddressesField("addresses", &s.Addresses, "Addresses of the Sentinels, `host:port`.").Need(),
		schema.TextField("master", &s.Master, "Name of the set of servers they watch.").Need(),
		schema.TextField("username", &s.Username, "User name at the Sentinels."),
		schema.SecretField("password", &s.Password, "Password at the Sentinels."),
	}}
}

// tlsField is how a connection to a server is secured.
func tlsField(target **TLS) schema.Field {
	return schema.PartField("tls", func() schema.Mapping {
		t := &TLS{}
		*target = t
		return schema.Mapping{
			Fields: []schema.Field{
				schema.PathField("ca", &t.CA, "Certificates of the authorities to trust.").Means("the system's"),
				schema.PathField("certificate", &t.Certificate, "Certificate to show."),
				schema.PathField("key", &t.Key, "Its key."),
				schema.TextField("server_name", &t.ServerName, "Name that the server's certificate must have.").Means("the host's"),
				schema.TruthField("insecure_skip_verify", &t.InsecureSkipVerify, "Believe any certificate: whoever stands between can read and answer.").Means("false"),
			},
			Check: func(v schema.Value, there schema.Members) {
				if (t.Certificate == "") != (t.Key == "") && there["certificate"].Node != nil != (there["key"].Node != nil) {
					v.Wrong("certificate and key belong together: name both")
				}
			},
		}
	}, "TLS to the server. It may be empty.").Means("off").Titled("TLS to a server")
}

func compact(c *Compact) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.DurationField("window", &c.Window, "How long keys are remembered.").Need(),
			schema.NumberField("slices", &c.Slices, 1, 64, "How many parts the window has: keys are forgotten a part at a time.").Means("4"),
			schema.CountField("expect", &c.Expect, "How many keys a window has.").Means("1,048,576"),
			schema.DurationField("grace", &c.Grace, "How long a key keeps its full record first.").Means("30s"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if c.Grace > 0 && c.Grace >= c.Window && c.Window > 0 {
				there["grace"].Wrong("it must be shorter than the window")
			}
		},
	}
}

func postgres() (Spec, schema.Mapping) {
	p := &Postgres{}
	return p, schema.Mapping{
		Fields: []schema.Field{
			dsnField(&p.DSN).Need(),
			schema.IdentifierField("schema", &p.Schema, 63, "Schema of its tables.").Means("public"),
			schema.IdentifierField("prefix", &p.Prefix, 40, "What the names of its tables begin with.").Means("semel_"),
			schema.ChoiceField("cleanup", &p.Cleanup, "How expired keys go. It counts when the tables are made, and cannot be changed later.",
				"delete", "generations", "message-time").Means("what the tables were made for; `delete` when they are made"),
			schema.NumberField("cleanup_rate", &p.CleanupRate, 1, 1_000_000_000, "The most rows a second that a clean-up deletes or moves.").Means("no limit but that it works a fifth of the time"),
			schema.HoursField("cleanup_hours", &p.CleanupHours, "Hours of the day, by UTC, in which keys are cleaned up, such as those of little load.").Means("all day"),
			schema.DurationField("generation", &p.Generation, "How long a generation lasts, with `cleanup: generations`.").Means("24h"),
			schema.DurationField("message_age", &p.MessageAge, "How old a UUIDv7 or ULID may be, with `cleanup: message-time`. It counts when the tables are made.").Means("7d"),
			schema.NumberField("partitions", &p.Partitions, 1, 1024, "Into how many parts the table is divided. It counts when the tables are made.").Means("none with `delete`, 32 with `message-time`"),
			schema.TruthField("prepare", &p.Prepare, "Have statements prepared by name, which not every pooler bears.").Means("false"),
			keepIDsField(&p.KeepIDs),
			maxResultField(&p.MaxResult).Means("1MiB"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if generation, ok := there["generation"]; ok && p.Cleanup != "generations" {
				generation.Wrong("it is for cleanup: generations: write that too, or leave it out")
			}
			if age, ok := there["message_age"]; ok && p.Cleanup != "message-time" {
				age.Wrong("it is for cleanup: message-time: write that too, or leave it out")
			}
			if partitions, ok := there["partitions"]; ok && p.Cleanup == "generations" {
				partitions.Wrong("generations have tables of their own: leave it out")
			}
		},
	}
}

// dsnField is the address of a PostgreSQL database.
func dsnField(target *schema.Secret) schema.Field {
	return schema.Field{
		Name: "dsn", Doc: "Address of the database, as a URL or as `host=… dbname=…`. In it `pool_max_conns` is the most connections.",
		Form: schema.Form{Scalar: schema.ScalarAddress}, Read: func(v schema.Value) { postgresDSN(v, target) },
	}
}

func postgresDSN(v schema.Value, target *schema.Secret) {
	v.Address(target)
	text := target.Reveal()
	switch {
	case text == "":
	case strings.HasPrefix(target.String(), schema.HiddenText), twoAts(text):
		v.Wrong("it cannot be understood: in the password of a URL write %%2F for /, %%3F for ?, %%23 for # and %%40 for @; elsewhere put a value with blanks in single quotes")
	case strings.Contains(text, "://") && !hasScheme(text, "postgres", "postgresql"):
		v.Wrong("it is no address of a PostgreSQL server: write postgres://user:password@host:5432/database")
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

// tieredField is a list of names, or fields one of which is that list.
func tieredField(target *Spec) schema.Field {
	names := schema.Form{Element: &schema.Form{Scalar: schema.ScalarStoreName}}
	return schema.Field{
		Name: "tiered",
		Doc:  "Layers above one durable store: a list of names from the top, the one that decides last, or fields. Above the last layer stand `memory`, `redis` and `filter`.",
		Form: schema.Form{Either: []schema.Form{names, {Members: func() schema.Mapping { return tiered(&Tiered{}) }}}},
		Read: func(v schema.Value) {
			t := &Tiered{OnStoreError: "stop"}
			*target = t
			if _, ok := v.Node.(*ast.SequenceNode); ok {
				v.References(&t.Layers)
				return
			}
			v.Mapping(tiered(t))
		},
	}
}

func tiered(t *Tiered) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.ListField("layers", schema.Form{Scalar: schema.ScalarStoreName}, func(v schema.Value) { v.References(&t.Layers) }, "The names, from the top; the last one decides.").Need(),
		schema.ChoiceField("on_store_error", &t.OnStoreError, "While the last layer does not answer: refuse, ask again, or let every message through unremembered.", "stop", "wait", "pass").Or("stop"),
		schema.WindowField("max_age", &t.MaxAge, "How long a copy in a layer answers without the store below.").Means("10m"),
		schema.DurationField("layer_timeout", &t.LayerTimeout, "How long one call of an upper layer may take.").Means("250ms"),
		schema.TruthField("sees_every_writer", &t.SeesEveryWriter, "No other process writes to the last layer, or all who do share the filter. A `filter` layer needs it.").Means("false"),
	}}
}

func filter() (Spec, schema.Mapping) {
	f := &Filter{}
	return f, schema.Mapping{Fields: []schema.Field{
		schema.StoreField("redis", &f.Redis, "Store of the kind `redis` on whose server it is.").Means("in memory"),
		schema.RateField("rate", &f.Rate, "How many of the new keys it takes for known, above 0 and below 1.").Need(),
		schema.CountField("expect", &f.Expect, "How many keys a window has.").Need(),
		schema.DurationField("window", &f.Window, "How long keys are remembered.").Need(),
	}}
}
