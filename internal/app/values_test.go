package app

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/expr"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// This file is one conformance table: the same value, in every spelling that its protocol
// calls equal, through every door of a pipeline. key/VALUES.md has the table.

var updateValues = flag.Bool("update-values", false, "write the tables of key/VALUES.md")

// sent is a message as a client of its protocol sends it.
type sent struct{ header, value, body string }

// protocol is a way into a pipeline.
type protocol struct {
	name   string
	source string // of a configuration
	// send sends messages in the way of a client. It may return before they are settled.
	send func(t *testing.T, list []sent)
}

func protocols(t *testing.T) []protocol {
	t.Helper()
	return []protocol{overHTTP(t), overKafka(t), overRabbitMQ(t), overSQS(t), overNATS(t), overFiles(t)}
}

// overHTTP sends every other body compressed.
func overHTTP(t *testing.T) protocol {
	addr := servicestest.FreeAddr(t)
	return protocol{"HTTP", fmt.Sprintf("{ http: { listen: %q } }", addr), func(t *testing.T, list []sent) {
		for i, m := range list {
			body, coding := []byte(m.body), ""
			if i%2 == 1 {
				var packed bytes.Buffer
				w := gzip.NewWriter(&packed)
				if _, err := w.Write(body); err != nil || w.Close() != nil {
					t.Fatal(err)
				}
				body, coding = packed.Bytes(), "gzip"
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header[m.header] = []string{m.value} // as it is: net/http does not rewrite it
			if coding != "" {
				req.Header.Set("Content-Encoding", coding)
			}
			go func() { // it is answered when the message is settled
				if resp, err := http.DefaultClient.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
		}
	}}
}

func overKafka(t *testing.T) protocol {
	addr, topic := servers.Kafka(t), servicestest.Topic()
	return protocol{"Kafka", fmt.Sprintf("{ kafka: { brokers: [%q], topics: [%s], group: %[2]s, retention: 1d } }", addr, topic), func(t *testing.T, list []sent) {
		client, err := kgo.NewClient(kgo.SeedBrokers(addr))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for _, m := range list {
			r := &kgo.Record{Topic: topic, Value: []byte(m.body), Headers: []kgo.RecordHeader{{Key: m.header, Value: []byte(m.value)}}}
			if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}}
}

func overRabbitMQ(t *testing.T) protocol {
	addr, queue := servers.RabbitMQ(t), servicestest.Topic()
	return protocol{"RabbitMQ", fmt.Sprintf("{ rabbitmq: { servers: [%q], queue: %s, create: true } }", addr, queue), func(t *testing.T, list []sent) {
		conn, err := amqp.Dial("amqp://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil || ch.Confirm(false) != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{Headers: amqp.Table{m.header: m.value}, Body: []byte(m.body)})
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := confirm.WaitContext(t.Context()); err != nil || !ok {
				t.Fatal("no confirm", err)
			}
		}
	}}
}

func overSQS(t *testing.T) protocol {
	url, queue := servers.SQS(t), servicestest.Topic()
	client := sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	if _, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &queue}); err != nil {
		t.Fatal(err)
	}
	at := url + "/000000000000/" + queue
	return protocol{"SQS", fmt.Sprintf("{ sqs: { queue: %q } }", at), func(t *testing.T, list []sent) {
		for _, m := range list {
			in := &sqs.SendMessageInput{QueueUrl: &at, MessageBody: aws.String(m.body), MessageAttributes: map[string]types.MessageAttributeValue{
				m.header: {DataType: aws.String("String"), StringValue: aws.String(m.value)},
			}}
			if _, err := client.SendMessage(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
	}}
}

func overNATS(t *testing.T) protocol {
	url, name := servers.NATS(t), strings.ReplaceAll(servicestest.Topic(), ".", "-")
	addr := strings.TrimPrefix(url, "nats://")
	return protocol{"NATS", fmt.Sprintf("{ nats: { servers: [%q], stream: %s, consumer: c, subjects: [%[2]s], create: true } }", addr, name), func(t *testing.T, list []sent) {
		conn, err := natsgo.Connect(url, natsgo.Timeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			if _, err := js.PublishMsg(t.Context(), &natsgo.Msg{Subject: name, Header: natsgo.Header{m.header: {m.value}}, Data: []byte(m.body)}); err != nil {
				t.Fatal(err)
			}
		}
	}}
}

func overFiles(t *testing.T) protocol {
	path := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return protocol{"files", fmt.Sprintf("{ file: { paths: [%q], follow: true, state: %q } }", path, t.TempDir()), func(t *testing.T, list []sent) {
		var text strings.Builder
		for _, m := range list {
			text.WriteString(m.body + "\n")
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}}
}

// pass opens the source of a protocol, sends messages, and returns their items by the
// number n in their bodies.
func (p *protocol) pass(t *testing.T, list []sent) map[int]*pipeline.Item {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if p.name == "Kafka" {
		p.createTopic(t)
	}
	f := parse(t, "stores: { keys: { memory: {} } }\npipelines: { p: { key: { id: .n }, store: keys, source: %s, sink: { file: { path: out } } } }", p.source)
	source, err := f.Pipelines[0].Source.Open(ctx, &config.Env{File: f, Pipeline: f.Pipelines[0]})
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	t.Cleanup(func() {
		if err := source.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	})
	p.send(t, list)
	items := map[int]*pipeline.Item{}
	for len(items) < len(list) {
		read, err := source.Read(ctx)
		if err != nil {
			t.Fatalf("%s: %d of %d messages: %v", p.name, len(items), len(list), err)
		}
		for _, it := range read {
			var body struct{ N int }
			if err := json.Unmarshal(it.Message.Body, &body); err != nil {
				t.Fatalf("%s: %s: %v", p.name, it.Message.Body, err)
			}
			it.Partition, it.Attempt, it.Call.Key = pipeline.NewPartition("values"), 1, semel.Key{Scope: "p", ID: strconv.Itoa(body.N)}
			items[body.N] = it
		}
		if err := source.Ack(ctx, read); err != nil {
			t.Fatal(err)
		}
	}
	return items
}

func (p *protocol) createTopic(t *testing.T) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(servers.Kafka(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topic := strings.SplitN(strings.SplitN(p.source, "topics: [", 2)[1], "]", 2)[0]
	if resp, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil || resp.Err != nil {
		t.Fatal(err, resp.Err)
	}
}

// doors are the places at which a pipeline uses values of a message. A door returns the
// result for a value, or an error.
type doors struct {
	sinks   map[string]pipeline.Sink // by table and source of the value
	pool    *pgxpool.Pool
	headers chan http.Header // of the requests of the webhook
	target  string
}

func openDoors(t *testing.T) *doors {
	t.Helper()
	d := &doors{sinks: map[string]pipeline.Sink{}, headers: make(chan http.Header, 1)}
	address := servers.Database(t)
	var err error
	if d.pool, err = pgxpool.New(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.pool.Close)
	if _, err := d.pool.Exec(t.Context(), "CREATE TABLE as_text (v text); CREATE TABLE as_jsonb (v jsonb)"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { d.headers <- r.Header }))
	t.Cleanup(server.Close)
	d.target = server.URL
	return d
}

// column writes a value to a column and reads it back.
func (d *doors) column(t *testing.T, table, from string, it *pipeline.Item) (string, error) {
	t.Helper()
	sink := d.sinks[table+from]
	if sink == nil {
		var err error
		if sink, err = postgres.Open(t.Context(), d.pool.Config().ConnString(), &postgres.Options{Table: table, Columns: []postgres.Column{{Name: "v", From: from}}}); err != nil {
			t.Fatal(err)
		}
		d.sinks[table+from] = sink
		t.Cleanup(func() { _ = sink.Close(context.Background()) })
	}
	copied := *it
	copied.Err = nil
	sink.Deliver(t.Context(), []*pipeline.Item{&copied})
	if copied.Err != nil {
		return "", copied.Err
	}
	var text *string
	if err := d.pool.QueryRow(t.Context(), "DELETE FROM "+table+" RETURNING v::text").Scan(&text); err != nil {
		t.Fatal(err)
	}
	if text == nil {
		return "", errNull
	}
	return *text, nil
}

var errNull = errors.New("NULL")

// forward sends a message on by HTTP and returns the header that arrived.
func (d *doors) forward(t *testing.T, name string, it *pipeline.Item) (string, error) {
	t.Helper()
	sink, err := webhook.New(&webhook.Options{URL: d.target, AllowPrivate: true, Forward: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close(t.Context())
	copied := *it
	copied.Err = nil
	sink.Deliver(t.Context(), []*pipeline.Item{&copied})
	if copied.Err != nil {
		t.Fatal(copied.Err)
	}
	if value := (<-d.headers).Get(name); value != "" {
		return value, nil
	}
	return "", errNull
}

// evaluate returns whether a filter passes, or the value of a map.
func evaluate(t *testing.T, filter, mapping string, it *pipeline.Item) (string, error) {
	t.Helper()
	f, err := expr.Compile(filter, mapping, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, pass, err := f.Call(t.Context(), pipeline.DeliveryOf(it))
	switch {
	case err != nil:
		return "", err
	case mapping == "":
		return strconv.FormatBool(pass), nil
	}
	return string(body), nil
}

func idOf(t *testing.T, rule *key.Rule, err error, it *pipeline.Item) (string, error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	k, err := rule.Key("p", &it.Message)
	return k.ID, err
}

// headerDoors are the doors that take the name of a header.
func (d *doors) headerDoors(t *testing.T) []door {
	first := func(name string) (*key.Rule, error) {
		missing, err := key.ParseRule(".none")
		if err != nil {
			return nil, err
		}
		rule, err := key.ParseRule("header:" + name)
		if err != nil {
			return nil, err
		}
		return key.First(missing, rule)
	}
	return []door{
		{"key rule `header:NAME`", func(name string, it *pipeline.Item) (string, error) {
			rule, err := key.ParseRule("header:" + name)
			return idOf(t, rule, err, it)
		}},
		{"one of several key rules", func(name string, it *pipeline.Item) (string, error) {
			rule, err := first(name)
			return idOf(t, rule, err, it)
		}},
		{"template `{header:NAME}`", func(name string, it *pipeline.Item) (string, error) {
			rule, err := key.Template("{header:" + name + "}")
			return idOf(t, rule, err, it)
		}},
		{"filter `\"NAME\" in headers`", func(name string, it *pipeline.Item) (string, error) {
			is, err := evaluate(t, strconv.Quote(name)+" in headers", "", it)
			if err == nil && is == "true" {
				return headerValue, nil
			}
			return "", errNull
		}},
		{"map `headers[\"NAME\"]`", func(name string, it *pipeline.Item) (string, error) {
			text, err := evaluate(t, "", "headers["+strconv.Quote(name)+"]", it)
			return strings.Trim(text, `"`), err
		}},
		{"column or argument `header:NAME`", func(name string, it *pipeline.Item) (string, error) {
			return d.column(t, "as_text", "header:"+name, it)
		}},
		{"`forward: [NAME]` of a webhook", func(name string, it *pipeline.Item) (string, error) { return d.forward(t, name, it) }},
		{"target `from: header:NAME`", func(name string, it *pipeline.Item) (string, error) {
			route, err := pipeline.NewRoute("header:"+name, "*")
			if err != nil {
				t.Fatal(err)
			}
			return route.Target(&it.Message)
		}},
	}
}

type door struct {
	name string
	of   func(name string, it *pipeline.Item) (string, error)
}

const headerName, headerValue = "X-Request-Id", "r-1"

// values are JSON values with their spellings.
var values = []string{
	`"7"`, `"\u0037"`, `7`, `7.0`, `7e0`, `12345678901234567890123`, `12345678901234567.89`, `true`, `null`, `""`,
	`"café"`, `"caf\u00e9"`, `{"b":1,"a":"x"}`, `{ "a": "\u0078", "b": 1 }`, `[1]`, `"\ud800"`,
}

func TestSourcesAndSinksReadValuesAlike(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "x") // so the test is not parallel
	}
	d := openDoors(t)
	list := []sent{{headerName, headerValue, `{"n":0}`}}
	for i, v := range values {
		list = append(list, sent{headerName, headerValue, fmt.Sprintf(`{"n":%d,"v":%s}`, i+1, v)})
	}
	all := protocols(t)
	read := make([]map[int]*pipeline.Item, len(all))
	for i := range all {
		read[i] = all[i].pass(t, list)
	}

	// Names of headers.
	headers := table{head: []string{"door"}}
	for _, p := range all {
		headers.head = append(headers.head, p.name)
	}
	for _, door := range d.headerDoors(t) {
		row := []string{door.name}
		for i := range all {
			found := ""
			for _, spelling := range []string{headerName, strings.ToLower(headerName), strings.ToUpper(headerName)} {
				value, err := door.of(spelling, read[i][0])
				if err != nil {
					value = ""
				} else if value != headerValue {
					t.Errorf("%s, %s, %s: %q, want %q", all[i].name, door.name, spelling, value, headerValue)
				}
				if value != "" {
					found += spelling[len("X-"):]
				}
			}
			row = append(row, map[string]string{"": "no headers", "Request-Id": "as sent", "Request-Idrequest-idREQUEST-ID": "any case"}[found])
			if row[i+1] == "" {
				t.Errorf("%s, %s: found as %s", all[i].name, door.name, found)
			}
		}
		if want := []string{"any case", "as sent", "as sent", "as sent", "as sent", "no headers"}; !slices.Equal(row[1:], want) {
			t.Errorf("%q: HTTP has no case, files have no headers, and the others have case", row)
		}
		headers.rows = append(headers.rows, row)
	}

	// Values of bodies.
	var bodies table
	for i := range all {
		of := d.valuesOf(t, read[i])
		if i == 0 {
			bodies = of
			continue
		}
		for r, row := range of.rows {
			if !slices.Equal(row, bodies.rows[r]) {
				t.Errorf("%s: %q, and over HTTP %q", all[i].name, row, bodies.rows[r])
			}
		}
	}
	compareTables(t, map[string]table{"headers": headers, "bodies": bodies, "keys": keys(t)})
}

// valuesOf returns the values as each door sees them.
func (d *doors) valuesOf(t *testing.T, items map[int]*pipeline.Item) table {
	t.Helper()
	path, hash := "`.v`", "`hash(.v)`"
	out := table{head: []string{"row", "value", "key rule " + path, "key rule `number(.v)`", "template `o-{.v}`", hash, "filter `value.v == 7`", "map `value.v`", "`text` column", "`jsonb` column", "fingerprint"}}
	cell := func(text string, err error) string {
		switch {
		case errors.Is(err, errNull):
			return "NULL"
		case errors.Is(err, key.ErrMissing):
			return "no id"
		case errors.Is(err, key.ErrNotScalar):
			return "no id"
		case err != nil:
			return "parked"
		}
		if text == "" {
			return "empty"
		}
		return "`" + text + "`"
	}
	same := map[string]int{} // the first row with an id or fingerprint
	as := func(row int, door, id string, err error) string {
		if err != nil {
			return cell("", err)
		}
		if _, ok := same[door+id]; !ok {
			same[door+id] = row
		}
		if same[door+id] == row {
			return "its own"
		}
		return fmt.Sprintf("as %d", same[door+id])
	}
	for i, v := range values {
		it := items[i+1]
		row := []string{strconv.Itoa(i + 1), "`" + v + "`"}
		for _, text := range []string{".v", "number(.v)"} {
			rule, err := key.ParseRule(text)
			id, err := idOf(t, rule, err, it)
			text := cell(string(key.AppendText(nil, []byte(id))), err)
			if kind, ok := map[string]string{"\x00n": "number ", "\x00t": "truth value "}[id[:min(2, len(id))]]; ok {
				text = kind + text
			}
			row = append(row, text)
		}
		rule, err := key.Template("o-{.v}")
		id, err := idOf(t, rule, err, it)
		row = append(row, cell(string(key.AppendText(nil, []byte(id))), err))
		rule, err = key.ParseRule("hash(.v)")
		id, err = idOf(t, rule, err, it)
		row = append(row, as(i+1, "hash", id, err))
		passes, err := evaluate(t, "value.v == 7", "", it)
		row = append(row, strings.Trim(cell(passes, err), "`"))
		row = append(row, cell(evaluate(t, "", "value.v", it)))
		row = append(row, cell(d.column(t, "as_text", ".v", it)), cell(d.column(t, "as_jsonb", ".v", it)))
		reader := rule.Reader(&key.FinderOptions{Content: true})
		m := it.Message
		m.Body = []byte(strings.Replace(string(m.Body), fmt.Sprintf(`"n":%d`, i+1), `"n":0`, 1))
		_, _ = reader.AppendID(nil, &m) // the print does not depend on the id
		row = append(row, as(i+1, "print", strconv.FormatUint(reader.Print(), 16), nil))
		out.rows = append(out.rows, row)
	}
	return out
}

// keys returns the table of the spellings of an Idempotency-Key: as the middleware and the
// source http read them.
func keys(t *testing.T) table {
	t.Helper()
	p := overHTTP(t)
	lines := []string{`q-1`, `"q-1"`, `"q-1";v=1`, `"q\"1"`, `'q-1'`, `q 1`}
	var list []sent
	for i, line := range lines {
		list = append(list, sent{[]string{"Idempotency-Key", "idempotency-key"}[i%2], line, fmt.Sprintf(`{"n":%d}`, i)})
	}
	items := p.pass(t, list)
	out := table{head: []string{"`Idempotency-Key:`", "key of a request, `httpidem.KeyOf`", "`header:Idempotency-Key` of a pipeline"}}
	rule, err := key.ParseRule("header:Idempotency-Key")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range lines {
		id, err := idOf(t, rule, nil, items[i])
		if err != nil {
			t.Fatal(err)
		}
		if got, want := keyOfRequest(t, line), httpidem.Key("orders", "global", id); got != want {
			t.Errorf("%s is %q in the middleware, and %q in a pipeline", line, got.ID, want.ID)
		}
		out.rows = append(out.rows, []string{"`" + line + "`", "`" + id + "`", "`" + id + "`"})
	}
	return out
}

// keyOfRequest returns the key that a handler gets for the value of an Idempotency-Key.
func keyOfRequest(t *testing.T, value string) (got semel.Key) {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := httpidem.New(guard, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, _ = httpidem.KeyOf(r.Context())
	}), &httpidem.Options{Scope: httpidem.AnyCaller, Route: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Idempotency-Key", value)
	handler.ServeHTTP(httptest.NewRecorder(), r)
	return got
}

// table is a table of a document.
type table struct {
	head []string
	rows [][]string
}

func (t table) String() string {
	var b strings.Builder
	line := func(cells []string) {
		for _, cell := range cells {
			b.WriteString("| " + strings.ReplaceAll(cell, "|", "\\|") + " ")
		}
		b.WriteString("|\n")
	}
	line(t.head)
	b.WriteString(strings.Repeat("|---", len(t.head)) + "|\n")
	for _, row := range t.rows {
		line(row)
	}
	return b.String()
}

// compareTables compares tables with those of key/VALUES.md, each between two comments.
func compareTables(t *testing.T, tables map[string]table) {
	t.Helper()
	const name = "../../key/VALUES.md"
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for of, table := range tables {
		begin, end := "<!-- table "+of+" -->\n", "<!-- end of table "+of+" -->"
		before, rest, ok := strings.Cut(text, begin)
		_, after, ends := strings.Cut(rest, end)
		if !ok || !ends {
			t.Fatalf("%s has no place for the table %s", name, of)
		}
		text = before + begin + table.String() + end + after
	}
	if *updateValues && !t.Failed() {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text != string(page) {
		t.Errorf("%s has other tables: go test ./internal/app -run ReadValuesAlike -update-values, and look what has changed:\n%s", name, text)
	}
}
