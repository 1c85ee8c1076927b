package config

import (
	"slices"
	"strings"
	"time"
)

// pipelines reads the section of that name.
func (v value) pipelines() []*Pipeline {
	var list []*Pipeline
	before := len(v.problems)
	entries, ok := v.entries()
	if ok && len(entries) == 0 && len(v.problems) == before {
		v.wrong("it names no pipeline")
	}
	for _, e := range entries {
		if !isName(e.name) {
			v.reader.wrong(e.at, "%s: this is no name for a pipeline: write letters, digits, - and _, at most 64", v.path)
			continue
		}
		at := e.at
		at.File = v.name
		p := &Pipeline{Name: e.name, At: at, Source: invalid{}, Sink: invalid{}}
		v.value(e.value, within(v.path, e.name)).mapping(pipelineMapping(p))
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

// defaultOrder keeps lines in the order of their file where they become lines
// again. Elsewhere only what has one key has an order.
func defaultOrder(p *Pipeline) string {
	if p.Source.Kind() == "file" && (p.Sink.Kind() == "file" || p.Sink.Kind() == "stdout") {
		return "lane"
	}
	return "key"
}

func pipelineMapping(p *Pipeline) mapping {
	return mapping{
		fields: []field{
			oneKindField("source", func() mapping { return sourceMapping(&p.Source) }, "source", "{ file: { paths: [in.jsonl] } }", "Where messages come from: one kind.").need(),
			partField("key", func() mapping { return keyMapping(&p.Key) }, "What makes two deliveries the same.").need(),
			windowField("window", &p.Window, "How long a key is remembered, from completion. It should be longer than a message can come again: what the broker keeps, redelivers or redrives.").or("7d"),
			durationField("lease", &p.Lease, "How long a claim lasts without being extended, which happens every third of it: after a crash a message waits that long, unless the store is of the process itself.").or("30s"),
			choiceField("on_lease_expired", &p.OnLeaseExpired, "After a crash between effect and completion: try again, with the same key and a higher token, or hold the key as *unknown* until somebody resolves it.",
				"retry", "hold").or("retry"),
			choiceField("on_late", &p.OnLate, "A message whose own time is longer ago than the window, and of whose key nothing is known. From Kafka to Kafka in a transaction it is with `time: event` a record that is behind the newest of its partition by more than `grace`, and otherwise none.", "run", "park", "drop").or("run"),
			choiceField("on_mismatch", &p.OnMismatch, "A key that was used with another body. It needs `fingerprint: true`.", "park", "drop", "stop").or("park"),
			storeField("store", &p.Store, "Store of the keys. From Kafka to Kafka it may be left out: keys, outputs and offsets are then one transaction."),
			oneKindField("sink", func() mapping { return sinkMapping(&p.Sink) }, "sink", "{ stdout: {} }", "Where messages go to: one kind.").need(),
			partField("on_failure", func() mapping { return failureMapping(&p.OnFailure) }, "What follows a delivery that failed.").always(),
			choiceField("on_store_error", &p.OnStoreError, "While the store does not answer: stand still, or deliver without a decision.", "stop", "pass").or("stop"),
			truthField("observe", &p.Observe, "Decide and count, and deliver whatever the decision is: to see what would be dropped. `on_late`, `on_mismatch` and `on_store_error` have no effect then; what has no key, or cannot be delivered, is treated as `on_missing` and `on_failure` say.").or("false"),
			choiceField("order", &p.Order, "What is delivered in order: messages of one record key (or key), or all of a lane (a partition, a file).", "key", "lane").means("key; from files to a file or stdout lane"),
			numberField("parallel", &p.Parallel, 1, 10_000, "How many batches are under way at once.").means("what the sink wants"),
			limitField("batch", &p.Batch, "Bounds of what is decided and delivered together.", "what the sink wants: to Kafka 2,000, otherwise 500", "`in_flight.bytes` divided by `parallel`, and never more"),
			limitField("in_flight", &p.InFlight, "Bounds of all that is read and not settled; reading waits at them.", "10,000", "64MiB"),
			durationField("wait", &p.Wait, "How long a message waits for a key that another holds, before it goes back to a source that can take it back. With files and Kafka it waits on, and the log says so.").or("5s"),
			partField("parked", func() mapping { return parkedMapping(&p.Parked) }, "Where messages are put aside, one of these.").means("{ path: ./semel-parked }; from Kafka to Kafka in a transaction the first topic's name with `-parked` behind it"),
			truthField("lossy", &p.Lossy, "Allow a store of the kind `filter`, which drops new messages at its rate.").or("false"),
			partField("transaction", func() mapping { return transactionMapping(&p.Transaction) }, "How a pipeline from Kafka to Kafka without a store commits.").always(),
		},
		check: func(v value, there members) { checkPipelineFields(p, v, there) },
	}
}

// oneKindField is a mapping that has one of several kinds.
func oneKindField(name string, kinds func() mapping, what, example, doc string) field {
	return field{name: name, doc: doc, form: form{members: kinds}, read: func(v value) { v.kind(kinds(), what, example) }}
}

func limitField(name string, l *Limit, doc, most, bytes string) field {
	return partField(name, func() mapping {
		return mapping{fields: []field{
			countField("max", &l.Max, "Messages.").means(most),
			sizeField("bytes", &l.Bytes, "Their bytes, as they are in memory. A message that is larger goes alone.").means(bytes),
		}}
	}, doc)
}

func failureMapping(f *Failure) mapping {
	return mapping{
		fields: []field{
			numberField("attempts", &f.Attempts, 1, 1_000_000, "How often a message is delivered before it is given up. A permanent error gives it up at once; a sink that cannot be reached costs no attempt.").or("8"),
			partField("backoff", func() mapping {
				return mapping{
					fields: []field{
						durationField("from", &f.Backoff.From, "Pause after the first failure. It doubles with each.").or("200ms"),
						durationField("to", &f.Backoff.To, "Longest pause.").or("30s"),
					},
					check: func(v value, there members) {
						if f.Backoff.From > f.Backoff.To {
							v.wrong("from is longer than to")
						}
					},
				}
			}, "The pause before the next attempt, of which a random share up to a half is left out.").always(),
			choiceField("then", &f.Then, "What follows the last attempt: put the message aside, give it up (it is lost), or end the pipeline.", "park", "drop", "stop").or("park"),
		},
	}
}

func parkedMapping(p *Parked) mapping {
	return mapping{
		fields: []field{
			pathField("path", &p.Path, "Directory."),
			storeField("store", &p.Store, "Store of the kind `postgres`, in whose database they are."),
			textField("topic", &p.Topic, "Topic of the Kafka that is source or sink."),
		},
		oneOf: [][]string{{"path", "store", "topic"}},
	}
}

// longestInterval bounds how long a transaction is open: the broker ends one of
// which it hears nothing for ten seconds, into which two intervals must fit.
const longestInterval = 5 * time.Second

func transactionMapping(t *Transaction) mapping {
	return mapping{
		fields: []field{
			durationField("interval", &t.Interval, "How long a transaction is open: what readers wait for. It must be below 5s.").or("100ms"),
			countField("max_records", &t.MaxRecords, "Records that end it earlier.").means("100,000"),
			sizeField("max_bytes", &t.MaxBytes, "Bytes that end it earlier.").means("64MiB"),
			textField("id", &t.ID, "What transactional ids begin with. A slash, the name of the member (`instance`), a dash and a number come behind it, so ACLs for them need a prefix.").means("the group"),
			textField("changelog", &t.Changelog, "Topic that holds the keys. With several `topics` and no `repartition` each has one, with a dash and its name behind this one.").means("the group with `-keys` behind it"),
			pathField("state", &t.State, "Directory of the local copy of the keys.").or("semel-state"),
			choiceField("time", &t.Time, "By which time keys expire: the clock's, or the records' own.", "processing", "event").or("processing"),
			pauseField("grace", &t.Grace, "With `time: event`, how much older than the newest record of its partition a record may be before it is late.").or("0s"),
			numberField("sessions", &t.Sessions, 1, 64, "How many transactions are open at once in a process, each for a share of the partitions.").means("2"),
			truthField("standby", &t.Standby, "Keep the keys of all partitions in this process, so that one which comes to it is at work at once. Every instance then needs memory and disk for all keys.").or("false"),
		},
		check: func(_ value, there members) {
			if interval, ok := there["interval"]; ok && t.Interval >= longestInterval {
				interval.wrong("must be below %s: the broker ends a transaction of which it hears nothing for 10s, into which two intervals must fit", Duration(longestInterval))
			}
			if grace, ok := there["grace"]; ok && t.Grace > 0 && t.Time == "processing" {
				grace.wrong("it is for time: event: write that too, or leave it out")
			}
		},
	}
}

// checkPipelineFields finds what is wrong between fields of one pipeline that
// needs nothing else of the file.
func checkPipelineFields(p *Pipeline, v value, there members) {
	if m, ok := there["on_mismatch"]; ok && !p.Key.Fingerprint {
		m.wrong("it means nothing without a fingerprint: write fingerprint: true under key, or leave it out")
	}
	if p.InFlight.Max > 0 && p.Batch.Max > p.InFlight.Max || p.InFlight.Bytes > 0 && p.Batch.Bytes > p.InFlight.Bytes {
		there["batch"].wrong("a batch is larger than all that may be in flight")
	}
	source, fromKafka := p.Source.(*KafkaSource)
	sink, toKafka := p.Sink.(*KafkaSink)
	if p.Parked.Topic != "" && !fromKafka && !toKafka {
		there["parked"].wrong("topic: neither source nor sink is kafka: name a path or a store")
	}
	inKafka := p.Store.Name == ""
	if inKafka && there["store"].node == nil && v.node != nil && !invalidKind(p) {
		switch {
		case !fromKafka || !toKafka:
			v.wrong("store is missing: name the store that remembers the keys")
		case !sameBrokers(source.Brokers, sink.Brokers):
			v.wrong("store is missing: source and sink are two Kafka clusters, which have no transaction in common: name the store that remembers the keys")
		}
	}
	if inKafka && fromKafka && toKafka {
		if p.Observe {
			there["observe"].wrong("what a transaction of Kafka would drop cannot be observed: name a store to observe with")
		}
		if parked, ok := there["parked"]; ok && p.Parked.Topic == "" {
			parked.wrong("what is put aside is part of the transaction: name a topic")
		}
	}
	if t, ok := there["transaction"]; ok && !inKafka {
		t.wrong("it is for Kafka to Kafka with the keys in Kafka: leave store out, or this")
	}
}

// invalidKind reports whether source or sink could not be read.
func invalidKind(p *Pipeline) bool {
	return p.Source.Kind() == "" || p.Sink.Kind() == ""
}

// sameBrokers reports whether two lists have a broker in common.
func sameBrokers(a, b []string) bool {
	return slices.ContainsFunc(a, func(broker string) bool { return slices.Contains(b, broker) })
}

func adminMapping(a *Admin) mapping {
	return mapping{fields: []field{
		{name: "listen", doc: "Address for probes and metrics, or `off`.", form: form{scalar: aText}, initial: "127.0.0.1:4195", read: func(v value) {
			if v.text(&a.Listen); a.Listen != "off" {
				v.checkListen(a.Listen)
			}
		}},
		partField("auth", func() mapping {
			a.Auth = &Auth{}
			return mapping{
				fields: []field{
					textField("username", &a.Auth.Username, "User name for a browser."),
					secretField("password", &a.Auth.Password, "Password."),
					secretField("token", &a.Auth.Token, "Bearer token for programs."),
				},
				check: func(v value, there members) {
					_, user := there["username"]
					_, password := there["password"]
					_, token := there["token"]
					switch {
					case user != password:
						v.wrong("username and password belong together: name both")
					case v.node != nil && !user && !token:
						v.wrong("it is empty: name username and password, or token")
					}
				},
			}
		}, "Who may use it. An address that others can reach needs it.").means("nobody is asked"),
		serverTLSField(&a.TLS),
	}}
}

// serverTLSField is how a server secures its connections.
func serverTLSField(target **ServerTLS) field {
	return partField("tls", func() mapping {
		t := &ServerTLS{}
		*target = t
		return mapping{fields: []field{
			pathField("certificate", &t.Certificate, "Certificate of the server.").need(),
			pathField("key", &t.Key, "Its key.").need(),
			pathField("client_ca", &t.ClientCA, "Certificates of the authorities of which clients must show one.").means("clients show none"),
		}}
	}, "TLS from clients.").means("off").titled("TLS of a server")
}

func logMapping(l *Log) mapping {
	return mapping{fields: []field{
		choiceField("format", &l.Format, "`auto` is text on a terminal and JSON elsewhere.", "auto", "text", "json").or("auto"),
		choiceField("level", &l.Level, "What is logged: this and what is worse.", "debug", "info", "warn", "error").or("info"),
	}}
}

// checkListen reports an address that cannot be listened on.
func (v value) checkListen(address string) {
	if address == "" {
		return // reported
	}
	host, port, ok := cutLast(address, ":")
	if !ok || strings.ContainsAny(host, "/@ ") || !isPort(port) {
		v.wrong("it is no address to listen on: write it like 127.0.0.1:8080")
	}
}

func cutLast(text, separator string) (before, after string, ok bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}
