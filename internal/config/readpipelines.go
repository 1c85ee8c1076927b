package config

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// readPipelines reads the section "pipelines".
func (k *Kinds) readPipelines(v schema.Value) (list []*Pipeline) {
	readNamed(v, "pipeline", func(name string, at schema.Place, member schema.Value) {
		if slices.Contains([]string{"source", "key", "sink", "store"}, name) && !hasMember(member.Node, "source") {
			v.WrongAt(at, "%s.%s: %[2]s is a field of a pipeline, and stands where a name of a pipeline is expected: indent it by two more spaces", v.Path, name)
			return
		}
		p := &Pipeline{Name: name, At: at, Source: invalidSource{}, Sink: invalidSink{}}
		member.Mapping(k.pipelineMapping(p))
		p.Key.Scope = cmp.Or(p.Key.Scope, p.Name)
		p.Order = cmp.Or(p.Order, defaultOrder(p))
		if p.Filter != "" || p.Map != "" {
			p.FilterMap = k.filterMap(p)
		}
		list = append(list, p)
	})
	return list
}

// hasMember reports whether a node is a mapping with this member.
func hasMember(node ast.Node, name string) bool {
	switch n := node.(type) {
	case *ast.MappingNode:
		return slices.ContainsFunc(n.Values, func(v *ast.MappingValueNode) bool { return v.Key.String() == name })
	case *ast.MappingValueNode:
		return n.Key.String() == name
	}
	return false
}

// defaultOrder keeps the order of a file if its lines become lines again.
// Otherwise only messages with the same key are ordered.
func defaultOrder(p *Pipeline) string {
	if p.Source.About(p).Lines && p.Sink.About().Lines {
		return "partition"
	}
	return "key"
}

func (k *Kinds) pipelineMapping(p *Pipeline) schema.Mapping {
	var expressions []func() // they are read when the names of the tables are known
	return schema.Mapping{
		Fields: []schema.Field{
			oneKindField("source", func() schema.Mapping { return kindsMapping(&p.Source, k.Sources) }, "source", "{ file: { paths: [in.jsonl] } }", "Where messages come from. It has one kind.").Need(),
			unwrapField(p),
			schema.PartField("key", func() schema.Mapping { return keyMapping(&p.Key) }, "How Semel finds the key of a message. Two deliveries with the same key are the same message.").NeedUnless("source.http.verify", "unwrap"),
			tablesField(p),
			expressionField("filter", &p.Filter, &expressions, "A condition in CEL, evaluated after the decision about the key. A message for which it is false is not delivered. An error fails the message permanently.",
				func(text string) error { return k.checkExpressions(text, "", p) }),
			expressionField("map", &p.Map, &expressions, "An expression in CEL, evaluated after `filter`, whose value is the body that the sink gets. An error fails the message permanently.",
				func(text string) error { return k.checkExpressions("", text, p) }),
			schema.WindowField("window", &p.Window, "How long a key is remembered after its completion. It must be longer than messages can be delivered again, redriven, or read again.").Or("7d"),
			schema.DurationField("lease", &p.Lease, "How long a claim lasts. Semel extends it after every third of that time. After a crash a message waits that long, unless the store belongs to the process itself. From an outbox, also how long a relay has its shards.").Or("30s"),
			schema.ChoiceField("on_lease_expired", &p.OnLeaseExpired, "After a crash between effect and completion: `retry` processes the message again, with the same key and a higher token. `hold` keeps the key as *unknown* until an operator resolves it.",
				"retry", "hold").Or("retry"),
			schema.ChoiceField("on_late", &p.OnLate, "A message whose own time is longer ago than the window, and whose key is not known. In a Kafka transaction only `time: event` has late messages: those that are older than the newest of their partition by more than `grace`.", "run", "park", "drop").Or("run"),
			schema.ChoiceField("on_mismatch", &p.OnMismatch, "A message whose key was used with another body. With `ignore` it is a duplicate, and the log and `semel status` count it.", "ignore", "park", "drop", "stop").Or("ignore"),
			schema.StoreField("store", &p.Store, "Store of the keys. From Kafka to Kafka and from an outbox, a pipeline needs none."),
			oneKindField("sink", func() schema.Mapping { return kindsMapping(&p.Sink, k.Sinks) }, "sink", "{ stdout: {} }", "Where messages go. It has one kind.").Need(),
			schema.PartField("on_failure", func() schema.Mapping { return failureMapping(&p.OnFailure) }, "What happens after a failed delivery.").Always(),
			schema.ChoiceField("on_store_error", &p.OnStoreError, "While the store does not answer: `stop` waits for it, `pass` delivers without a decision.", "stop", "pass").Or("stop"),
			schema.TruthField("observe", &p.Observe, "Decide and count, but deliver every message. Only `on_missing` and `on_failure` apply as usual.").Or("false"),
			schema.ChoiceField("order", &p.Order, "Which messages keep their order: those with the same record key (or key), or all of a partition (of Kafka, or a file).", "key", "partition").Means("key; partition from files to a file or stdout"),
			schema.NumberField("parallel", &p.Parallel, 1, 10_000, "How many batches are processed concurrently. In a Kafka transaction: how many transactions are open, each for a share of the partitions.").Means("what the sink wants; 2 in a Kafka transaction"),
			schema.CountField("batch", &p.Batch, "The maximum number of messages that are decided and delivered together.").Means("what the sink wants: 2,000 for Kafka, otherwise 500"),
			schema.PartField("in_flight", func() schema.Mapping {
				return schema.Mapping{Fields: []schema.Field{
					schema.CountField("max", &p.InFlight.Max, "Messages.").Means("10,000; 100,000 in a Kafka transaction"),
					schema.SizeField("bytes", &p.InFlight.Bytes, "Their bytes in memory. A larger message goes alone.").Means("64MiB"),
				}}
			}, "Limits for messages that are read and not yet settled. Reading waits at these limits. In a Kafka transaction they end the transaction."),
			schema.PartField("parked", func() schema.Mapping { return parkedMapping(&p.Parked) }, "Where messages are parked. Set one of these.").Means("{ path: ./semel-parked }; in a Kafka transaction the topic `FIRST-TOPIC-parked`"),
			schema.TruthField("lossy", &p.Lossy, "Allow a `filter` store, which drops new messages at its rate.").Or("false"),
			aggregateField(p),
			schema.PartField("transaction", func() schema.Mapping { return transactionMapping(&p.Transaction) }, "How a pipeline from Kafka to Kafka commits without a store.").Always(),
		},
		Check: func(v schema.Value, there schema.Members) {
			for _, read := range expressions {
				read()
			}
			_, hasKey := there["key"]
			if _, unwraps := there["unwrap"]; !hasKey && v.Node != nil && (!unwraps || p.Unwrap != nil) {
				keyOfSource(p, v)
			}
			checkPipelineFields(p, v, there)
		},
		Refused: refusedInPipeline,
	}
}

// keyOfSource gives a pipeline without a key that of its envelope, or that of its source.
func keyOfSource(p *Pipeline, v schema.Value) {
	switch {
	case p.Unwrap == nil:
		if p.Key.Rule = p.Source.About(p).Key; p.Key.Rule == nil {
			v.Wrong("key is missing")
		}
	default:
		if p.Key.Rule = p.Unwrap.Key(); p.Key.Rule == nil {
			v.Wrong("key is missing: unwrap: [%s] knows no key for the message inside: write one, such as key: { id: .id }", p.Unwrap)
		}
	}
	p.Key.OnMissing = defaultOnMissing
}

// expressionField is an expression, which is read later. check says what is wrong with it.
func expressionField(name string, target *string, later *[]func(), doc string, check func(text string) error) schema.Field {
	return schema.Field{Name: name, Doc: doc, Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) {
		*later = append(*later, func() {
			schema.Quantity(v, target, "an expression in quotes", func(text string) (string, error) {
				if strings.TrimSpace(text) == "" {
					return "", errors.New("it is empty: leave it out")
				}
				return text, check(text)
			})
		})
	}}
}

// checkExpressions returns the errors of expressions. A build without expressions
// cannot run a pipeline, and checks none.
func (k *Kinds) checkExpressions(filter, mapping string, p *Pipeline) error {
	if k.Expressions == nil {
		return nil
	}
	_, err := k.Expressions(filter, mapping, p.rows())
	return err
}

// filterMap compiles expressions that were checked. If they cannot be compiled after
// all, every message fails: none may pass without its filter.
func (k *Kinds) filterMap(p *Pipeline) pipeline.FilterMap {
	err := errors.New("this build has no expressions")
	if k.Expressions != nil {
		var f pipeline.FilterMap
		if f, err = k.Expressions(p.Filter, p.Map, p.rows()); err == nil {
			return f
		}
	}
	return func(context.Context, pipeline.Delivery) ([]byte, bool, error) { return nil, false, err }
}

// rows returns the functions that find the rows of the tables.
func (p *Pipeline) rows() map[string]func(*semel.Message) ([]byte, error) {
	rows := map[string]func(*semel.Message) ([]byte, error){}
	for _, t := range p.Tables {
		rows[t.Name] = t.Row
	}
	return rows
}

// oneKindField is a mapping that contains one of several kinds.
func oneKindField(name string, kinds func() schema.Mapping, what, example, doc string) schema.Field {
	return schema.Field{Name: name, Doc: doc, Form: schema.Form{Members: kinds}, Read: func(v schema.Value) { v.Kind(kinds(), what, example) }}
}

func failureMapping(f *pipeline.Failure) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.NumberField("attempts", &f.Attempts, 1, 1_000_000, "How many times a message is delivered before Semel gives up. After a permanent error it gives up immediately. A sink that cannot be reached costs no attempt.").Or("8"),
			schema.DurationField("backoff", &f.To, "The longest pause before the next attempt. The first pause is 200ms, and each is up to twice as long as the one before.").Or("30s"),
			thenField("then", &f.Then, "What happens after the last attempt: `park` parks the message, `drop` loses it, `stop` ends the pipeline."),
		},
	}
}

func parkedMapping(p *Parked) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.PathField("path", &p.Path, "Directory."),
			schema.StoreField("store", &p.Store, "Store of the kind `postgres`, for a table in its database."),
			schema.TextField("topic", &p.Topic, "Kafka topic of the source's or the sink's cluster."),
			schema.DurationField("max_age", &p.MaxAge, "How long a message stays parked in the directory or table. An older message is deleted while the pipeline runs, unless it is queued for a redrive. In a topic, the retention of the topic deletes.").Means("for ever"),
		},
		OneOf: [][]string{{"path", "store", "topic"}},
		Check: func(_ schema.Value, there schema.Members) {
			if age, ok := there["max_age"]; ok && p.Topic != "" {
				age.Wrong("messages in a topic are deleted by its retention: leave max_age out, and set retention.ms of the topic")
			}
		},
	}
}

// longestInterval limits how long a transaction is open. The broker ends a
// transaction after ten seconds of silence, and two intervals must fit into that.
const longestInterval = 5 * time.Second

// maxTransactions is the maximum number of concurrent transactions of a process.
const maxTransactions = 64

func transactionMapping(t *Transaction) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.DurationField("interval", &t.Interval, "How long a transaction is open, and so how long readers wait. It must be below 5s.").Or("100ms"),
			schema.TextField("changelog", &t.Changelog, "Topic that holds the keys. With several `topics` and no `repartition`, each topic has one of its own: `CHANGELOG-TOPIC`.").Means("`GROUP-keys`"),
			schema.PathField("state", &t.State, "Directory of the local copy of keys, windows and held messages.").Or("semel-state"),
			schema.ChoiceField("time", &t.Time, "Which time expires keys: the clock (`processing`) or the time of the records (`event`).", "processing", "event").Or("processing"),
			schema.PauseField("grace", &t.Grace, "With `time: event`: how much older than the newest record of its partition a record may be. An older record is late.").Or("0s"),
			schema.TruthField("standby", &t.Standby, "Keep the keys, windows and held records of all partitions in this process, so that it takes over a partition without reading them first. Every instance then needs memory and disk for all of them.").Or("false"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if interval, ok := there["interval"]; ok && t.Interval >= longestInterval {
				interval.Wrong("must be below %s: the broker aborts a transaction after 10s of silence, and two intervals must fit into that", schema.Duration(longestInterval))
			}
			if grace, ok := there["grace"]; ok && t.Grace > 0 && t.Time == "processing" {
				grace.Wrong("it needs time: event: write that too, or leave it out")
			}
		},
	}
}

// checkPipelineFields reports conflicts between fields of one pipeline that do
// not depend on the rest of the file.
func checkPipelineFields(p *Pipeline, v schema.Value, there schema.Members) {
	if p.InFlight.Max > 0 && p.Batch > p.InFlight.Max {
		there["batch"].Wrong("a batch is larger than in_flight.max: write a smaller batch")
	}
	_, reads := p.Source.(Topics)
	_, writes := p.Sink.(Topics)
	if p.Parked.Topic != "" && !reads && !writes {
		there["parked"].Wrong("neither source nor sink is kafka, so there is no topic: write a path or a store")
	}
	if p.Store.Name != "" {
		for _, name := range []string{"transaction", "aggregate", "tables"} {
			if t, ok := there[name]; ok {
				t.Wrong("it is only for Kafka to Kafka without a store: leave out store, or %s", name)
			}
		}
		if p.Key.Keep != nil {
			there["key"].Wrong("keep is only for Kafka to Kafka without a store, where records that are held are part of the transaction: leave out store, or keep")
		}
		return
	}
	if there["store"].Node != nil || v.Node == nil || invalidKind(p) {
		return
	}
	if p.Source.About(p).Outbox.Name != "" {
		for _, name := range []string{"transaction", "aggregate", "tables"} {
			if t, ok := there[name]; ok {
				t.Wrong("it is only for Kafka to Kafka without a store: leave it out")
			}
		}
		if p.Key.Keep != nil {
			there["key"].Wrong("keep is only for Kafka to Kafka without a store: leave it out")
		}
		return
	}
	why := "write store: NAME, the store of the keys"
	source, transactional := p.Source.(TransactionalSource)
	if transactional {
		why = source.Joins(p.Sink)
	}
	if why != "" {
		v.Wrong("store is missing: %s", why)
		return
	}
	if parallel, ok := there["parallel"]; ok && p.Parallel > maxTransactions {
		parallel.Wrong("a process has at most %d open Kafka transactions: write %d or less", maxTransactions, maxTransactions)
	}
	if p.Observe {
		there["observe"].Wrong("a Kafka transaction cannot observe: write a store while you observe")
	}
	checkKeep(p, there)
	checkTables(p, source, there)
	if parked, ok := there["parked"]; ok && p.Parked.Topic == "" {
		parked.Wrong("a Kafka transaction parks messages in a topic: write parked: { topic: NAME }")
	}
}

// invalidKind reports whether source or sink could not be read.
func invalidKind(p *Pipeline) bool {
	return p.Source.Kind() == "" || p.Sink.Kind() == ""
}

func adminMapping(a *Admin) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		{Name: "listen", Doc: "Address for probes and metrics, or `off`.", Form: schema.Form{Scalar: schema.ScalarText}, Initial: "127.0.0.1:4195", Read: func(v schema.Value) {
			if v.Text(&a.Listen); a.Listen != "off" {
				v.CheckListen(a.Listen)
			}
		}},
		{Name: "public_url", Doc: "URL at which browsers and programs reach the server, if it is not its address: behind a proxy, or by a service name. The server refuses requests for other hosts (421).", Form: schema.Form{Scalar: schema.ScalarText}, Shown: "none", Read: func(v schema.Value) {
			v.Text(&a.PublicURL)
			if u, err := url.Parse(a.PublicURL); a.PublicURL != "" && (err != nil || u.Host == "" || !schema.HasScheme(a.PublicURL, "http", "https")) {
				v.Wrong("not the URL of a server: write it like https://semel.example.com")
			}
		}},
		schema.PartField("auth", func() schema.Mapping {
			a.Auth = &Auth{}
			m := credentials(a.Auth)
			m.Fields = append(m.Fields, schema.PartField("viewer", func() schema.Mapping {
				a.Auth.Viewer = &Auth{}
				return credentials(a.Auth.Viewer)
			}, "Further credentials, for people who look and change nothing: they see keys, but no bodies of messages.").Means("none"))
			return m
		}, "Credentials of the server. They are required if other machines can reach the address, and for the page to show keys.").Means("none"),
		ServerTLSField(&a.TLS),
	}}
}

// credentials reads a user with a password, a token, or both.
func credentials(a *Auth) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.TextField("username", &a.Username, "User name for a browser."),
			schema.SecretField("password", &a.Password, "Password."),
			schema.SecretField("token", &a.Token, "Bearer token for programs."),
		},
		Check: func(v schema.Value, there schema.Members) {
			_, user := there["username"]
			_, password := there["password"]
			_, token := there["token"]
			switch {
			case user != password:
				v.Wrong("username and password belong together: write both")
			case v.Node != nil && !user && !token:
				v.Wrong("it is empty: write username and password, or token")
			}
		},
	}
}

func logMapping(l *Log) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.ChoiceField("format", &l.Format, "`auto` is text on a terminal and JSON elsewhere.", "auto", "text", "json").Or("auto"),
		schema.ChoiceField("level", &l.Level, "The lowest level that is logged.", "debug", "info", "warn", "error").Or("info"),
		schema.ShareField("duplicates", &l.Duplicates, "The share of dropped duplicates that are logged at `info`, with key and origin, from 0 to 1. `level: debug` logs all.").Or("0"),
	}}
}
