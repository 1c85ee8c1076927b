package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel/key"
)

func sinkMapping(target *Sink) mapping {
	m := kindsOf(
		kindField("file", target, func() (Sink, mapping) {
			s := &FileSink{}
			return s, mapping{fields: []field{pathField("path", &s.Path, "File that lines are appended to.").need()}}
		}, "Lines of a file: body and line end. With an `embedded` store, keys and lines become durable together."),
		kindField("stdout", target, func() (Sink, mapping) { return &StdoutSink{}, mapping{} }, "Lines on standard output."),
		kindField("webhook", target, webhookSink, "A request for each message, with the headers `Idempotency-Key`, `Semel-Attempt`, `Semel-Token`, `Semel-Scope` and `Semel-Redrive`. The response is kept as the key's result."),
		kindField("postgres", target, postgresSink, "Rows: one of `statement`, `table` and `upsert`. In the database of the pipeline's store, keys and rows are one transaction."),
		kindField("kafka", target, kafkaSink, "Records of a topic, with the headers of the message and those that name its key."),
	)
	m.planned = []string{"rabbitmq", "sqs", "nats"}
	return m
}

func webhookSink() (Sink, mapping) {
	w := &WebhookSink{}
	return w, mapping{check: func(_ value, there members) { checkStatuses(w, there) }, fields: []field{
		{name: "url", doc: "Address of the target, `https://…`.", form: form{scalar: aAddress}, required: true, read: func(v value) { v.webhookURL(&w.URL) }},
		choiceField("method", &w.Method, "Method of the request.", "POST", "PUT", "PATCH").or("POST"),
		{name: "headers", doc: "Headers to add. Their values are treated as secrets.", form: form{named: &form{scalar: aSecret}}, read: func(v value) { v.headers(&w.Headers) }},
		durationField("timeout", &w.Timeout, "How long one request may take, with its answer.").or("10s"),
		{name: "allow_private", doc: "Let it reach addresses that are not public: all with `true`, or those of networks such as `10.0.0.0/8`.", initial: "false",
			form: form{either: []form{{scalar: aTruth}, {element: &form{scalar: aText}}}}, read: func(v value) { v.networks(&w.AllowPrivate) }},
		tlsField(&w.TLS),
		sizeField("max_response", &w.MaxResponse, "Longest response that is kept; of a longer one only that the effect is there.").or("64KiB"),
		statusesField("success", &w.Success, "Further statuses that mean that the effect is there, beside 2xx."),
		statusesField("retry", &w.Retry, "Further statuses after which another attempt may succeed, beside 403, 408, 409, 425, 429 and 5xx. After 401, 407, 503, and 429 with `Retry-After`, the pipeline waits for the target, and no attempt is spent, unless the target goes on to take others and not this message. All others give the message up."),
		listField("forward", form{scalar: aText}, func(v value) { v.list(func(element value) { element.forwarded(&w.Forward) }) }, "Headers of the message that are sent on."),
	}}
}

func (v value) webhookURL(target *Secret) {
	v.address(target)
	text := target.Reveal()
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || strings.HasPrefix(target.String(), hiddenText) {
		v.wrong("it is no address of a target: write https://host/path")
		*target = Secret{}
	}
}

// headers reads names and secret values.
func (v value) headers(target *[]Header) {
	entries, _ := v.entries()
	for _, e := range entries {
		if problem := ofHeaderName(e.name); problem != "" {
			v.reader.wrong(e.at, "%s: %s", v.path, problem)
			continue
		}
		h := Header{Name: e.name}
		v.value(e.value, within(v.path, e.name)).secret(&h.Value)
		if strings.ContainsAny(h.Value.Reveal(), "\r\n\x00") {
			v.reader.wrong(e.at, "%s: a value of a header is one line", within(v.path, e.name))
		}
		*target = append(*target, h)
	}
}

// forwarded reads the name of a header of messages that is sent on.
func (v value) forwarded(target *[]string) {
	var name string
	v.text(&name)
	if name == "" {
		return
	}
	if problem := ofHeaderName(name); problem != "" {
		v.wrong("%s", problem)
		return
	}
	*target = append(*target, name)
}

// ofHeaderName says why a header cannot be set; "" is that it can.
func ofHeaderName(name string) string {
	switch strings.ToLower(name) {
	case "connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade":
		return name + " belongs to the connection: leave it out"
	case "idempotency-key", "semel-attempt", "semel-token", "semel-scope", "semel-redrive", "semel-pipeline":
		return name + " is written by the sink itself: leave it out"
	}
	if !isHeaderName(name) {
		return "this is no name of a header"
	}
	return ""
}

// checkStatuses refuses to try again what had its effect.
func checkStatuses(w *WebhookSink, there members) {
	for _, status := range w.Retry {
		if status < 300 || slices.Contains(w.Success, status) {
			there["retry"].wrong("%d means that the effect is there: leave it out", status)
			return
		}
	}
}

func isHeaderName(name string) bool {
	for _, c := range []byte(name) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != ""
}

// networks reads true, which is all networks, false, or a list.
func (v value) networks(target *[]netip.Prefix) {
	if _, ok := v.node.(*ast.SequenceNode); !ok {
		all := false
		if v.truth(&all); all {
			*target = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		}
		return
	}
	v.list(func(element value) {
		quantity(element, new(netip.Prefix), "a network", func(text string) (netip.Prefix, error) {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				address, addressErr := netip.ParseAddr(text)
				if addressErr != nil {
					return prefix, errors.New("not a network: write it like 10.0.0.0/8")
				}
				prefix = netip.PrefixFrom(address, address.BitLen())
			}
			if a := prefix.Addr(); a.Is4In6() && prefix.Bits() >= 96 { // addresses of IPv4 are compared as such
				prefix = netip.PrefixFrom(a.Unmap(), prefix.Bits()-96)
			}
			*target = append(*target, prefix.Masked())
			return prefix, nil
		})
	})
}

// statusesField is a list of 404, 4xx and 400-409.
func statusesField(name string, target *[]int, doc string) field {
	return listField(name, form{scalar: aStatus}, func(v value) {
		v.list(func(element value) {
			var statuses []int
			quantity(element, &statuses, "a status", parseStatuses)
			*target = append(*target, statuses...)
		})
	}, doc)
}

func parseStatuses(text string) ([]int, error) {
	low, high := text, text
	if class, ok := strings.CutSuffix(strings.ToLower(text), "xx"); ok && len(class) == 1 {
		low, high = class+"00", class+"99"
	} else if from, to, ok := strings.Cut(text, "-"); ok {
		low, high = from, to
	}
	l, lowErr := strconv.Atoi(low)
	h, highErr := strconv.Atoi(high)
	if lowErr != nil || highErr != nil || l < 200 || h > 599 || l > h {
		return nil, errors.New("not a status: write 404, 400-409 or 4xx")
	}
	var list []int
	for status := l; status <= h; status++ {
		list = append(list, status)
	}
	return list, nil
}

func postgresSink() (Sink, mapping) {
	s := &PostgresSink{}
	args := form{scalar: aValue}
	return s, mapping{
		fields: []field{
			storeField("store", &s.Store, "Store of the kind `postgres` in whose database the rows go. If it is the pipeline's, keys and rows are one transaction."),
			dsnField(&s.DSN),
			textField("statement", &s.Statement, "Statement to execute for each message, where `$1`, `$2`… stand for `args`."),
			listField("args", args, func(v value) {
				v.list(func(element value) {
					var from string
					element.source(&from)
					s.Args = append(s.Args, from)
				})
			}, "What `$1`, `$2`… stand for."),
			tableField(&s.Table, "Table that gets a row for each message."),
			columnsField(&s.Columns, "Its columns, with `table`, and where their values come from."),
			partField("upsert", func() mapping { s.Upsert = &Upsert{}; return upsertMapping(s.Upsert) }, "Keep one row for each value of some columns."),
		},
		oneOf: [][]string{{"store", "dsn"}, {"statement", "table", "upsert"}},
		check: func(v value, there members) {
			args, hasArgs := there["args"]
			columns, hasColumns := there["columns"]
			_, hasTable := there["table"]
			switch {
			case hasArgs && s.Statement == "":
				args.wrong("it is for a statement")
			case hasColumns && !hasTable:
				columns.wrong("it is for a table; an upsert has its own")
			case hasTable && !hasColumns:
				v.wrong("columns is missing")
			}
		},
	}
}

func upsertMapping(u *Upsert) mapping {
	return mapping{
		fields: []field{
			tableField(&u.Table, "Table.").need(),
			columnsField(&u.Columns, "Columns, and where their values come from.").need(),
			listField("key", form{scalar: aText}, func(v value) {
				v.list(func(element value) {
					var name string
					if element.identifier(&name, 63); name != "" {
						u.Key = append(u.Key, name)
					}
				})
			}, "Columns that are unique together.").need(),
			identifierField("version", &u.Version, 63, "Column that must grow for a row to be replaced: what is older changes nothing.").means("none: the last delivery wins"),
		},
		check: func(v value, there members) {
			names := columnNames(u.Columns)
			for _, name := range u.Key {
				if !slices.Contains(names, name) && names != nil {
					there["key"].wrong("%s is not among the columns: %s", name, OneOf(name, names))
				}
			}
			if u.Version != "" && !slices.Contains(names, u.Version) && names != nil {
				there["version"].wrong("%s is not among the columns: %s", u.Version, OneOf(u.Version, names))
			}
		},
	}
}

func columnNames(columns []Column) []string {
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	return names
}

// tableField is the name of a table, which may have a schema before it.
func tableField(target *string, doc string) field {
	return field{name: "table", doc: doc, form: form{scalar: aText}, read: func(v value) {
		var whole string
		if v.text(&whole); whole == "" {
			return
		}
		schema, table, ok := strings.Cut(whole, ".")
		if !ok {
			table = schema
		}
		if !isIdentifier(schema, 63) || !isIdentifier(table, 63) {
			v.wrong("it is no name of a table: write lower-case letters, digits and _, a letter first, as in payments or app.payments")
			return
		}
		*target = whole
	}}
}

// columnsField is where the values of columns come from.
func columnsField(target *[]Column, doc string) field {
	return field{name: "columns", doc: doc, form: form{named: &form{scalar: aValue}}, read: func(v value) {
		entries, ok := v.entries()
		if ok && len(entries) == 0 {
			v.wrong("it names no column: write { column: .member }")
		}
		for _, e := range entries {
			if !isIdentifier(e.name, 63) {
				v.reader.wrong(e.at, "%s: this is no name of a column: write lower-case letters, digits and _, a letter first", v.path)
				continue
			}
			c := Column{Name: e.name}
			v.value(e.value, within(v.path, e.name)).source(&c.From)
			*target = append(*target, c)
		}
	}}
}

// source reads where in a message a value comes from.
func (v value) source(target *string) {
	quantity(v, target, "a text", func(text string) (string, error) {
		words := []string{"record-key", "property:message-id", "body", "key", "scope", "time", "attempt", "token", "source", "partition", "offset"}
		if name, ok := strings.CutPrefix(text, "header:"); ok && name != "" || slices.Contains(words, text) {
			return text, nil
		}
		if strings.HasPrefix(text, ".") {
			if _, err := key.ParsePath(text); err != nil {
				return "", ruleProblem(err)
			}
			return text, nil
		}
		return "", fmt.Errorf("write a path such as .amount, header:NAME, or %s", strings.Join(words, ", "))
	})
}

func kafkaSink() (Sink, mapping) {
	s := &KafkaSink{}
	return s, mapping{
		fields: append(kafkaFields(&s.KafkaClient),
			textField("topic", &s.Topic, "Topic to write.").need(),
			choiceField("partition", &s.Partition, "Which partition: by the hash of the record key, as Kafka's own clients do, or the one of the same number as the source's.", "record-key", "same").or("record-key"),
			choiceField("acks", &s.Acks, "How many replicas have a record before it counts. Less than all loses it with a broker: a pipeline refuses to run with it.", "all", "1", "0").or("all"),
			truthField("idempotent", &s.Idempotent, "Have the broker notice a record that is sent twice. A pipeline refuses to run without it.").or("true"),
			choiceField("compression", &s.Compression, "Compression of what is sent.", "none", "gzip", "snappy", "lz4", "zstd").or("lz4"),
			truthField("key_headers", &s.KeyHeaders, "Add headers that name the key and, outside of transactions, attempt and token. Who reads by the record key can do without: they cost this process and the brokers about as much as a small record does.").or("true"),
		),
	}
}
