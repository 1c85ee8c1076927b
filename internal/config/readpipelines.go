package config

import (
	"time"

	"github.com/semel-dev/semel/internal/schema"
)

// readPipelines reads the section "pipelines".
func (k *Kinds) readPipelines(v schema.Value) []*Pipeline {
	var list []*Pipeline
	before := len(v.Problems)
	entries, ok := v.Entries()
	if ok && len(entries) == 0 && len(v.Problems) == before {
		v.Wrong("it names no pipeline")
	}
	for _, e := range entries {
		if !schema.IsName(e.Name) {
			v.WrongAt(e.At, "%s: this is no name for a pipeline: write letters, digits, - and _, at most 64", v.Path)
			continue
		}
		at := e.At
		at.File = v.Name
		p := &Pipeline{Name: e.Name, At: at, Source: invalidSource{}, Sink: invalidSink{}}
		v.Value(e.Value, schema.Within(v.Path, e.Name)).Mapping(k.pipelineMapping(p))
		if p.Key.Scope == "" {
			p.Key.Scope = p.Name
		}
		if p.Order == "" {
			p.Order = defaultOrder(p)
		}
		list = append(list, p)
	}
	return list
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
	return schema.Mapping{
		Fields: []schema.Field{
			oneKindField("source", func() schema.Mapping { return kindsMapping(&p.Source, k.Sources) }, "source", "{ file: { paths: [in.jsonl] } }", "Where messages come from: one kind.").Need(),
			schema.PartField("key", func() schema.Mapping { return keyMapping(&p.Key) }, "What makes two deliveries the same.").Need(),
			schema.WindowField("window", &p.Window, "How long a key is remembered, from completion. It should be longer than a message can come again: what the broker keeps, redelivers or redrives.").Or("7d"),
			schema.DurationField("lease", &p.Lease, "How long a claim lasts without being extended, which happens every third of it: after a crash a message waits that long, unless the store is of the process itself.").Or("30s"),
			schema.ChoiceField("on_lease_expired", &p.OnLeaseExpired, "After a crash between effect and completion: try again, with the same key and a higher token, or hold the key as *unknown* until somebody resolves it.",
				"retry", "hold").Or("retry"),
			schema.ChoiceField("on_late", &p.OnLate, "A message whose own time is longer ago than the window, and of whose key nothing is known. From Kafka to Kafka in a transaction it is with `time: event` a record that is behind the newest of its partition by more than `grace`, and otherwise none.", "run", "park", "drop").Or("run"),
			schema.ChoiceField("on_mismatch", &p.OnMismatch, "A key that was used with another body. It needs `fingerprint: true`.", "park", "drop", "stop").Or("park"),
			schema.StoreField("store", &p.Store, "Store of the keys. From Kafka to Kafka it may be left out: keys, outputs and offsets are then one transaction."),
			oneKindField("sink", func() schema.Mapping { return kindsMapping(&p.Sink, k.Sinks) }, "sink", "{ stdout: {} }", "Where messages go to: one kind.").Need(),
			schema.PartField("on_failure", func() schema.Mapping { return failureMapping(&p.OnFailure) }, "What follows a delivery that failed.").Always(),
			schema.ChoiceField("on_store_error", &p.OnStoreError, "While the store does not answer: stand still, or deliver without a decision.", "stop", "pass").Or("stop"),
			schema.TruthField("observe", &p.Observe, "Decide and count, and deliver whatever the decision is: to see what would be dropped. `on_late`, `on_mismatch` and `on_store_error` have no effect then; what has no key, or cannot be delivered, is treated as `on_missing` and `on_failure` say.").Or("false"),
			schema.ChoiceField("order", &p.Order, "What is delivered in order: messages of one record key (or key), or all of a partition (of Kafka, or a file).", "key", "partition").Means("key; partition from files to a file or stdout"),
			schema.NumberField("parallel", &p.Parallel, 1, 10_000, "How many batches are under way at once.").Means("what the sink wants"),
			limitField("batch", &p.Batch, "Bounds of what is decided and delivered together.", "what the sink wants: to Kafka 2,000, otherwise 500", "`in_flight.bytes` divided by `parallel`, and never more"),
			limitField("in_flight", &p.InFlight, "Bounds of all that is read and not settled; reading waits at them.", "10,000", "64MiB"),
			schema.DurationField("wait", &p.Wait, "How long a message waits for a key that another holds, before it goes back to a source that can take it back. With files and Kafka it waits on, and the log says so.").Or("5s"),
			schema.PartField("parked", func() schema.Mapping { return parkedMapping(&p.Parked) }, "Where messages are put aside, one of these.").Means("{ path: ./semel-parked }; from Kafka to Kafka in a transaction the first topic's name with `-parked` behind it"),
			schema.TruthField("lossy", &p.Lossy, "Allow a store of the kind `filter`, which drops new messages at its rate.").Or("false"),
			schema.PartField("transaction", func() schema.Mapping { return transactionMapping(&p.Transaction) }, "How a pipeline from Kafka to Kafka without a store commits.").Always(),
		},
		Check: func(v schema.Value, there schema.Members) { checkPipelineFields(p, v, there) },
	}
}

// oneKindField is a mapping that contains one of several kinds.
func oneKindField(name string, kinds func() schema.Mapping, what, example, doc string) schema.Field {
	return schema.Field{Name: name, Doc: doc, Form: schema.Form{Members: kinds}, Read: func(v schema.Value) { v.Kind(kinds(), what, example) }}
}

func limitField(name string, l *Limit, doc, most, bytes string) schema.Field {
	return schema.PartField(name, func() schema.Mapping {
		return schema.Mapping{Fields: []schema.Field{
			schema.CountField("max", &l.Max, "Messages.").Means(most),
			schema.SizeField("bytes", &l.Bytes, "Their bytes, as they are in memory. A message that is larger goes alone.").Means(bytes),
		}}
	}, doc)
}

func failureMapping(f *Failure) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.NumberField("attempts", &f.Attempts, 1, 1_000_000, "How often a message is delivered before it is given up. A permanent error gives it up at once; a sink that cannot be reached costs no attempt.").Or("8"),
			schema.PartField("backoff", func() schema.Mapping {
				return schema.Mapping{
					Fields: []schema.Field{
						schema.DurationField("from", &f.Backoff.From, "Pause after the first failure. It doubles with each.").Or("200ms"),
						schema.DurationField("to", &f.Backoff.To, "Longest pause.").Or("30s"),
					},
					Check: func(v schema.Value, there schema.Members) {
						if f.Backoff.From > f.Backoff.To {
							v.Wrong("from is longer than to")
						}
					},
				}
			}, "The pause before the next attempt, of which a random share up to a half is left out.").Always(),
			schema.ChoiceField("then", &f.Then, "What follows the last attempt: put the message aside, give it up (it is lost), or end the pipeline.", "park", "drop", "stop").Or("park"),
		},
	}
}

func parkedMapping(p *Parked) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.PathField("path", &p.Path, "Directory."),
			schema.StoreField("store", &p.Store, "Store of the kind `postgres`, in whose database they are."),
			schema.TextField("topic", &p.Topic, "Topic of the Kafka that is source or sink."),
		},
		OneOf: [][]string{{"path", "store", "topic"}},
	}
}

// longestInterval limits how long a transaction is open. The broker ends a
// transaction after ten seconds of silence, and two intervals must fit into that.
const longestInterval = 5 * time.Second

func transactionMapping(t *Transaction) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.DurationField("interval", &t.Interval, "How long a transaction is open: what readers wait for. It must be below 5s.").Or("100ms"),
			schema.CountField("max_records", &t.MaxRecords, "Records that end it earlier.").Means("100,000"),
			schema.SizeField("max_bytes", &t.MaxBytes, "Bytes that end it earlier.").Means("64MiB"),
			schema.TextField("id", &t.ID, "What transactional ids begin with. A slash, the name of the member (`instance`), a dash and a number come behind it, so ACLs for them need a prefix.").Means("the group"),
			schema.TextField("changelog", &t.Changelog, "Topic that holds the keys. With several `topics` and no `repartition` each has one, with a dash and its name behind this one.").Means("the group with `-keys` behind it"),
			schema.PathField("state", &t.State, "Directory of the local copy of the keys.").Or("semel-state"),
			schema.ChoiceField("time", &t.Time, "By which time keys expire: the clock's, or the records' own.", "processing", "event").Or("processing"),
			schema.PauseField("grace", &t.Grace, "With `time: event`, how much older than the newest record of its partition a record may be before it is late.").Or("0s"),
			schema.NumberField("sessions", &t.Sessions, 1, 64, "How many transactions are open at once in a process, each for a share of the partitions.").Means("2"),
			schema.TruthField("standby", &t.Standby, "Keep the keys of all partitions in this process, so that one which comes to it is at work at once. Every instance then needs memory and disk for all keys.").Or("false"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if interval, ok := there["interval"]; ok && t.Interval >= longestInterval {
				interval.Wrong("must be below %s: the broker ends a transaction of which it hears nothing for 10s, into which two intervals must fit", schema.Duration(longestInterval))
			}
			if grace, ok := there["grace"]; ok && t.Grace > 0 && t.Time == "processing" {
				grace.Wrong("it is for time: event: write that too, or leave it out")
			}
		},
	}
}

// checkPipelineFields reports conflicts between fields of one pipeline that do
// not depend on the rest of the file.
func checkPipelineFields(p *Pipeline, v schema.Value, there schema.Members) {
	if m, ok := there["on_mismatch"]; ok && !p.Key.Fingerprint {
		m.Wrong("it means nothing without a fingerprint: write fingerprint: true under key, or leave it out")
	}
	if p.InFlight.Max > 0 && p.Batch.Max > p.InFlight.Max || p.InFlight.Bytes > 0 && p.Batch.Bytes > p.InFlight.Bytes {
		there["batch"].Wrong("a batch is larger than all that may be in flight")
	}
	_, reads := p.Source.(Topics)
	_, writes := p.Sink.(Topics)
	if p.Parked.Topic != "" && !reads && !writes {
		there["parked"].Wrong("topic: neither source nor sink is kafka: name a path or a store")
	}
	if p.Store.Name != "" {
		if t, ok := there["transaction"]; ok {
			t.Wrong("it is for Kafka to Kafka with the keys in Kafka: leave store out, or this")
		}
		return
	}
	if there["store"].Node != nil || v.Node == nil || invalidKind(p) {
		return
	}
	why := "name the store that remembers the keys"
	source, transactional := p.Source.(TransactionalSource)
	if transactional {
		why = source.Joins(p.Sink)
	}
	if why != "" {
		v.Wrong("store is missing: %s", why)
		return
	}
	if p.Observe {
		there["observe"].Wrong("what a transaction of Kafka would drop cannot be observed: name a store to observe with")
	}
	if parked, ok := there["parked"]; ok && p.Parked.Topic == "" {
		parked.Wrong("what is put aside is part of the transaction: name a topic")
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
		schema.PartField("auth", func() schema.Mapping {
			a.Auth = &Auth{}
			return schema.Mapping{
				Fields: []schema.Field{
					schema.TextField("username", &a.Auth.Username, "User name for a browser."),
					schema.SecretField("password", &a.Auth.Password, "Password."),
					schema.SecretField("token", &a.Auth.Token, "Bearer token for programs."),
				},
				Check: func(v schema.Value, there schema.Members) {
					_, user := there["username"]
					_, password := there["password"]
					_, token := there["token"]
					switch {
					case user != password:
						v.Wrong("username and password belong together: name both")
					case v.Node != nil && !user && !token:
						v.Wrong("it is empty: name username and password, or token")
					}
				},
			}
		}, "Who may use it. An address that others can reach needs it.").Means("nobody is asked"),
		ServerTLSField(&a.TLS),
	}}
}

func logMapping(l *Log) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.ChoiceField("format", &l.Format, "`auto` is text on a terminal and JSON elsewhere.", "auto", "text", "json").Or("auto"),
		schema.ChoiceField("level", &l.Level, "What is logged: this and what is worse.", "debug", "info", "warn", "error").Or("info"),
	}}
}
