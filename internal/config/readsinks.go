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

	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

func sinkMapping(target *Sink) schema.Mapping {
	return schema.KindsOf(
		schema.KindField("file", target, func() (Sink, schema.Mapping) {
			s := &FileSink{}
			return s, schema.Mapping{Fields: []schema.Field{schema.PathField("path", &s.Path, "File that lines are appended to.").Need()}}
		}, "Lines of a file: body and line end. With an `embedded` store, keys and lines become durable together."),
		schema.KindField("stdout", target, func() (Sink, schema.Mapping) { return &StdoutSink{}, schema.Mapping{} }, "Lines on standard output."),
		schema.KindField("webhook", target, webhookSink, "A request for each message, with the headers `Idempotency-Key`, `Semel-Attempt`, `Semel-Token`, `Semel-Scope` and `Semel-Redrive`. The response is kept as the key's result."),
		schema.KindField("postgres", target, postgresSink, "Rows: one of `statement`, `table` and `upsert`. In the database of the pipeline's store, keys and rows are one transaction."),
		schema.KindField("kafka", target, kafkaSink, "Records of a topic, with the headers of the message and those that name its key."),
	)
}

func webhookSink() (Sink, schema.Mapping) {
	w := &WebhookSink{}
	return w, schema.Mapping{Check: func(_ schema.Value, there schema.Members) { checkStatuses(w, there) }, Fields: []schema.Field{
		{Name: "url", Doc: "Address of the target, `https://…`.", Form: schema.Form{Scalar: schema.ScalarAddress}, Required: true, Read: func(v schema.Value) { webhookURL(v, &w.URL) }},
		schema.ChoiceField("method", &w.Method, "Method of the request.", "POST", "PUT", "PATCH").Or("POST"),
		{Name: "headers", Doc: "Headers to add. Their values are treated as secrets.", Form: schema.Form{Named: &schema.Form{Scalar: schema.ScalarSecret}}, Read: func(v schema.Value) { readHeaders(v, &w.Headers) }},
		schema.DurationField("timeout", &w.Timeout, "How long one request may take, with its answer.").Or("10s"),
		{Name: "allow_private", Doc: "Let it reach addresses that are not public: all with `true`, or those of networks such as `10.0.0.0/8`.", Initial: "false",
			Form: schema.Form{Either: []schema.Form{{Scalar: schema.ScalarTruth}, {Element: &schema.Form{Scalar: schema.ScalarText}}}}, Read: func(v schema.Value) { networks(v, &w.AllowPrivate) }},
		tlsField(&w.TLS),
		schema.SizeField("max_response", &w.MaxResponse, "Longest response that is kept; of a longer one only that the effect is there.").Or("64KiB"),
		statusesField("success", &w.Success, "Further statuses that mean that the effect is there, beside 2xx."),
		statusesField("retry", &w.Retry, "Further statuses after which another attempt may succeed, beside 403, 408, 409, 425, 429 and 5xx. After 401, 407, 503, and 429 with `Retry-After`, the pipeline waits for the target, and no attempt is spent, unless the target goes on to take others and not this message. All others give the message up."),
		schema.ListField("forward", schema.Form{Scalar: schema.ScalarText}, func(v schema.Value) { v.List(func(element schema.Value) { forwarded(element, &w.Forward) }) }, "Headers of the message that are sent on."),
	}}
}

func webhookURL(v schema.Value, target *schema.Secret) {
	v.Address(target)
	text := target.Reveal()
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || strings.HasPrefix(target.String(), schema.HiddenText) {
		v.Wrong("it is no address of a target: write https://host/path")
		*target = schema.Secret{}
	}
}

// headers reads names and secret values.
func readHeaders(v schema.Value, target *[]Header) {
	entries, _ := v.Entries()
	for _, e := range entries {
		if problem := ofHeaderName(e.Name); problem != "" {
			v.WrongAt(e.At, "%s: %s", v.Path, problem)
			continue
		}
		h := Header{Name: e.Name}
		v.Value(e.Value, schema.Within(v.Path, e.Name)).Secret(&h.Value)
		if strings.ContainsAny(h.Value.Reveal(), "\r\n\x00") {
			v.WrongAt(e.At, "%s: a value of a header is one line", schema.Within(v.Path, e.Name))
		}
		*target = append(*target, h)
	}
}

// forwarded reads the name of a header of messages that is sent on.
func forwarded(v schema.Value, target *[]string) {
	var name string
	v.Text(&name)
	if name == "" {
		return
	}
	if problem := ofHeaderName(name); problem != "" {
		v.Wrong("%s", problem)
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
func checkStatuses(w *WebhookSink, there schema.Members) {
	for _, status := range w.Retry {
		if status < 300 || slices.Contains(w.Success, status) {
			there["retry"].Wrong("%d means that the effect is there: leave it out", status)
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
func networks(v schema.Value, target *[]netip.Prefix) {
	if _, ok := v.Node.(*ast.SequenceNode); !ok {
		all := false
		if v.Truth(&all); all {
			*target = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		}
		return
	}
	v.List(func(element schema.Value) {
		schema.Quantity(element, new(netip.Prefix), "a network", func(text string) (netip.Prefix, error) {
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
func statusesField(name string, target *[]int, doc string) schema.Field {
	return schema.ListField(name, schema.Form{Scalar: schema.ScalarStatus}, func(v schema.Value) {
		v.List(func(element schema.Value) {
			var statuses []int
			schema.Quantity(element, &statuses, "a status", parseStatuses)
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

func postgresSink() (Sink, schema.Mapping) {
	s := &PostgresSink{}
	args := schema.Form{Scalar: schema.ScalarValue}
	return s, schema.Mapping{
		Fields: []schema.Field{
			schema.StoreField("store", &s.Store, "Store of the kind `postgres` in whose database the rows go. If it is the pipeline's, keys and rows are one transaction."),
			dsnField(&s.DSN),
			schema.TextField("statement", &s.Statement, "Statement to execute for each message, where `$1`, `$2`… stand for `args`."),
			schema.ListField("args", args, func(v schema.Value) {
				v.List(func(element schema.Value) {
					var from string
					columnSource(element, &from)
					s.Args = append(s.Args, from)
				})
			}, "What `$1`, `$2`… stand for."),
			tableField(&s.Table, "Table that gets a row for each message."),
			columnsField(&s.Columns, "Its columns, with `table`, and where their values come from."),
			schema.PartField("upsert", func() schema.Mapping { s.Upsert = &Upsert{}; return upsertMapping(s.Upsert) }, "Keep one row for each value of some columns."),
		},
		OneOf: [][]string{{"store", "dsn"}, {"statement", "table", "upsert"}},
		Check: func(v schema.Value, there schema.Members) {
			args, hasArgs := there["args"]
			columns, hasColumns := there["columns"]
			_, hasTable := there["table"]
			switch {
			case hasArgs && s.Statement == "":
				args.Wrong("it is for a statement")
			case hasColumns && !hasTable:
				columns.Wrong("it is for a table; an upsert has its own")
			case hasTable && !hasColumns:
				v.Wrong("columns is missing")
			}
		},
	}
}

func upsertMapping(u *Upsert) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			tableField(&u.Table, "Table.").Need(),
			columnsField(&u.Columns, "Columns, and where their values come from.").Need(),
			schema.ListField("key", schema.Form{Scalar: schema.ScalarText}, func(v schema.Value) {
				v.List(func(element schema.Value) {
					var name string
					if element.Identifier(&name, 63); name != "" {
						u.Key = append(u.Key, name)
					}
				})
			}, "Columns that are unique together.").Need(),
			schema.IdentifierField("version", &u.Version, 63, "Column that must grow for a row to be replaced: what is older changes nothing.").Means("none: the last delivery wins"),
		},
		Check: func(v schema.Value, there schema.Members) {
			names := columnNames(u.Columns)
			for _, name := range u.Key {
				if !slices.Contains(names, name) && names != nil {
					there["key"].Wrong("%s is not among the columns: %s", name, schema.OneOf(name, names))
				}
			}
			if u.Version != "" && !slices.Contains(names, u.Version) && names != nil {
				there["version"].Wrong("%s is not among the columns: %s", u.Version, schema.OneOf(u.Version, names))
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
func tableField(target *string, doc string) schema.Field {
	return schema.Field{Name: "table", Doc: doc, Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) {
		var whole string
		if v.Text(&whole); whole == "" {
			return
		}
		namespace, table, ok := strings.Cut(whole, ".")
		if !ok {
			table = namespace
		}
		if !schema.IsIdentifier(namespace, 63) || !schema.IsIdentifier(table, 63) {
			v.Wrong("it is no name of a table: write lower-case letters, digits and _, a letter first, as in payments or app.payments")
			return
		}
		*target = whole
	}}
}

// columnsField is where the values of columns come from.
func columnsField(target *[]Column, doc string) schema.Field {
	return schema.Field{Name: "columns", Doc: doc, Form: schema.Form{Named: &schema.Form{Scalar: schema.ScalarValue}}, Read: func(v schema.Value) {
		entries, ok := v.Entries()
		if ok && len(entries) == 0 {
			v.Wrong("it names no column: write { column: .member }")
		}
		for _, e := range entries {
			if !schema.IsIdentifier(e.Name, 63) {
				v.WrongAt(e.At, "%s: this is no name of a column: write lower-case letters, digits and _, a letter first", v.Path)
				continue
			}
			c := Column{Name: e.Name}
			columnSource(v.Value(e.Value, schema.Within(v.Path, e.Name)), &c.From)
			*target = append(*target, c)
		}
	}}
}

// source reads where in a message a value comes from.
func columnSource(v schema.Value, target *string) {
	schema.Quantity(v, target, "a text", func(text string) (string, error) {
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

func kafkaSink() (Sink, schema.Mapping) {
	s := &KafkaSink{}
	return s, schema.Mapping{
		Fields: append(kafkaFields(&s.KafkaClient),
			schema.TextField("topic", &s.Topic, "Topic to write.").Need(),
			schema.ChoiceField("partition", &s.Partition, "Which partition: by the hash of the record key, as Kafka's own clients do, or the one of the same number as the source's.", "record-key", "same").Or("record-key"),
			schema.ChoiceField("acks", &s.Acks, "How many replicas have a record before it counts. Less than all loses it with a broker: a pipeline refuses to run with it.", "all", "1", "0").Or("all"),
			schema.TruthField("idempotent", &s.Idempotent, "Have the broker notice a record that is sent twice. A pipeline refuses to run without it.").Or("true"),
			schema.ChoiceField("compression", &s.Compression, "Compression of what is sent.", "none", "gzip", "snappy", "lz4", "zstd").Or("lz4"),
			schema.TruthField("key_headers", &s.KeyHeaders, "Add headers that name the key and, outside of transactions, attempt and token. Who reads by the record key can do without: they cost this process and the brokers about as much as a small record does.").Or("true"),
		),
	}
}
