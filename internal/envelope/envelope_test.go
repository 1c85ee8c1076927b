package envelope

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// headersOf returns the headers as text.
func headersOf(m *semel.Message) string {
	var list []string
	for _, h := range m.Headers {
		list = append(list, h.Name+"="+string(h.Value))
	}
	return strings.Join(list, " ")
}

const change = `{"before":null,"after":{"id":1,"n":"a"},"source":{"connector":"postgresql","name":"shop","ts_ms":1700000000000,"snapshot":"false","db":"app","schema":"public","table":"orders","txId":7,"lsn":240},"op":"c","ts_ms":1700000000999}`

func TestUnwrapFindsTheMessage(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	celery := `{"body":"W1sxXSx7fSx7fV0=","content-type":"application/json","content-encoding":"utf-8","headers":{"id":"t1","task":"pay","retries":2,"eta":null,"timelimit":[null,null]},"properties":{"body_encoding":"base64"}}`
	for _, test := range []struct {
		name, steps, body string
		headers           []semel.Header
		want              string // the body
		wantHeaders, key  string
		at                time.Time
	}{
		{"JSON in a text", ".Message, json", `{"Message":"{\"id\":1}"}`, nil, `{"id":1}`, "", "", time.Time{}},
		{"encoded twice", "json", `"{\"id\":1}"`, nil, `{"id":1}`, "", "", time.Time{}},
		{"an object is JSON", "json", ` {"id":1} `, nil, `{"id":1}`, "", "", time.Time{}},
		{"base64", ".body, base64, json", `{"body":"eyJpZCI6MX0="}`, nil, `{"id":1}`, "", "", time.Time{}},
		{"base64 of URLs", ".b, base64", `{"b":"_-8"}`, nil, "\xff\xef", "", "", time.Time{}},
		{"an object at a path", ".a[1].b", `{"a":[0,{"b":{"id":1.50}}]}`, nil, `{"id":1.50}`, "", "", time.Time{}},
		{"headers stay", ".a", `{"a":1}`, []semel.Header{{Name: "x", Value: []byte("y")}}, `1`, "x=y", "", time.Time{}},
		{"SNS", "sns", `{"Type":"Notification","MessageId":"m1","TopicArn":"arn:t","Subject":"s","Message":"{\"id\":1}","Timestamp":"2026-01-02T03:04:05.678Z","MessageAttributes":{"kind":{"Type":"String","Value":"paid"},"raw":{"Type":"Binary","Value":"aGk="}}}`, nil,
			`{"id":1}`, "kind=paid raw=hi sns-message-id=m1 sns-topic-arn=arn:t sns-subject=s", `m1`, at("2026-01-02T03:04:05.678Z")},
		{"S3 behind SNS", "sns, s3", `{"Type":"Notification","MessageId":"m1","Message":"{\"Records\":[{\"eventName\":\"ObjectCreated:Put\",\"eventTime\":\"2026-01-02T03:04:05.678Z\",\"s3\":{\"bucket\":{\"name\":\"b\"},\"object\":{\"key\":\"k+1\",\"sequencer\":\"0A\"}}}]}"}`, nil,
			`{"eventName":"ObjectCreated:Put","eventTime":"2026-01-02T03:04:05.678Z","s3":{"bucket":{"name":"b"},"object":{"key":"k+1","sequencer":"0A"}}}`,
			"sns-message-id=m1 s3-id=b k+1  ObjectCreated:Put 0A s3-event=ObjectCreated:Put", "b k+1  ObjectCreated:Put 0A", at("2026-01-02T03:04:05.678Z")},
		{"structured event", "cloudevents", `{"specversion":"1.0","id":"e1","source":"/s","type":"paid","time":"2026-01-02T03:04:05Z","partition":7,"data":{"id":1}}`, []semel.Header{{Name: "content-type", Value: []byte("application/cloudevents+json")}},
			`{"id":1}`, "ce-specversion=1.0 ce-id=e1 ce-source=/s ce-type=paid ce-time=2026-01-02T03:04:05Z ce-partition=7 content-type=application/json", `all("/s","e1")`, at("2026-01-02T03:04:05Z")},
		{"event with a text", "cloudevents", `{"specversion":"1.0","id":"e1","source":"/s","type":"paid","datacontenttype":"text/plain","data":"a\"b"}`, nil,
			`a"b`, "ce-specversion=1.0 ce-id=e1 ce-source=/s ce-type=paid content-type=text/plain", `all("/s","e1")`, time.Time{}},
		{"event with JSON that is a text", "cloudevents", `{"specversion":"1.0","id":"e1","source":"/s","type":"paid","data":"a"}`, nil,
			`"a"`, "ce-specversion=1.0 ce-id=e1 ce-source=/s ce-type=paid content-type=application/json", `all("/s","e1")`, time.Time{}},
		{"event in base64", "cloudevents", `{"specversion":"1.0","id":"e1","source":"/s","type":"paid","data_base64":"aGk="}`, nil,
			`hi`, "ce-specversion=1.0 ce-id=e1 ce-source=/s ce-type=paid content-type=application/json", `all("/s","e1")`, time.Time{}},
		{"binary event", "cloudevents", `{"id":1}`, []semel.Header{{Name: "ce-specversion", Value: []byte("1.0")}, {Name: "ce-id", Value: []byte("e1")}, {Name: "ce-source", Value: []byte("/s")}, {Name: "ce-time", Value: []byte("2026-01-02T03:04:05Z")}},
			`{"id":1}`, "ce-specversion=1.0 ce-id=e1 ce-source=/s ce-time=2026-01-02T03:04:05Z", `all("/s","e1")`, at("2026-01-02T03:04:05Z")},
		{"binary event of Kafka", "cloudevents", `{"id":1}`, []semel.Header{{Name: "ce_specversion", Value: []byte("1.0")}, {Name: "ce_id", Value: []byte("e1")}, {Name: "ce_source", Value: []byte("/s")}},
			`{"id":1}`, "ce_specversion=1.0 ce_id=e1 ce_source=/s", `all("/s","e1")`, time.Time{}},
		{"change", "debezium", change, nil, `{"id":1,"n":"a"}`, "debezium-op=c debezium-table=shop.app.public.orders debezium-id=shop.app.public.orders txId=7,lsn=240 c 14de79d22ada12edda734b21", "shop.app.public.orders txId=7,lsn=240 c 14de79d22ada12edda734b21", time.UnixMilli(1700000000000)},
		{"change with its schema", "debezium", `{"schema":{"type":"struct"},"payload":` + change + `}`, nil, `{"id":1,"n":"a"}`, "debezium-op=c debezium-table=shop.app.public.orders debezium-id=shop.app.public.orders txId=7,lsn=240 c 14de79d22ada12edda734b21", "shop.app.public.orders txId=7,lsn=240 c 14de79d22ada12edda734b21", time.UnixMilli(1700000000000)},
		{"task", "celery", celery, nil, `[[1],{},{}]`, "id=t1 task=pay retries=2", `all("t1","2")`, time.Time{}},
		{"task in base64", "celery", "eyJib2R5IjoiVzFzeFhTeDdmU3g3ZlYwPSIsImhlYWRlcnMiOnsiaWQiOiJ0MSIsInRhc2siOiJwYXkiLCJyZXRyaWVzIjowfSwicHJvcGVydGllcyI6eyJib2R5X2VuY29kaW5nIjoiYmFzZTY0In19", nil,
			`[[1],{},{}]`, "id=t1 task=pay retries=0", `all("t1","0")`, time.Time{}},
		{"task of AMQP", "celery", `[[1],{},{}]`, []semel.Header{{Name: "id", Value: []byte("t1")}, {Name: "retries", Value: []byte("0")}}, `[[1],{},{}]`, "id=t1 retries=0", `all("t1","0")`, time.Time{}},
		{"task of the first protocol", "celery", `{"id":"t1","task":"pay","args":[1],"kwargs":{}}`, nil, `{"id":"t1","task":"pay","args":[1],"kwargs":{}}`, "id=t1 task=pay retries=0", `all("t1","0")`, time.Time{}},
		{"EventBridge", "eventbridge", `{"version":"0","id":"e1","detail-type":"Paid","source":"shop","time":"2026-01-02T03:04:05Z","region":"eu","detail":{"id":1}}`, nil,
			`{"id":1}`, "eventbridge-id=e1 eventbridge-source=shop eventbridge-detail-type=Paid", "e1", at("2026-01-02T03:04:05Z")},
	} {
		u, err := Parse(strings.Split(test.steps, ", "))
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		was := semel.Message{Body: []byte(test.body), Headers: test.headers, RecordKey: []byte("k"), Origin: semel.Origin{Offset: 7}}
		kept := fmt.Sprintf("%+v", was)
		m, err := u.Unwrap(was)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := headersOf(&m); string(m.Body) != test.want || got != test.wantHeaders || !m.Time.Equal(test.at) {
			t.Errorf("%s: %q, headers %q, time %v; want %q, headers %q, time %v", test.name, m.Body, got, m.Time, test.want, test.wantHeaders, test.at)
		}
		if now := fmt.Sprintf("%+v", was); now != kept {
			t.Errorf("%s: the message changed from %s to %s", test.name, kept, now)
		}
		if string(m.RecordKey) != "k" || !reflect.DeepEqual(m.Origin, was.Origin) {
			t.Errorf("%s: record key %q, origin %+v", test.name, m.RecordKey, m.Origin)
		}
		if (u.Key() == nil) != (test.key == "") {
			t.Errorf("%s: the key rule is %v", test.name, u.Key())
		} else if u.Key() != nil {
			k, err := u.Key().Key("", &m)
			if want := strings.Trim(test.key, `"`); err != nil || !strings.Contains(fmt.Sprint(k.ID), lastOf(want)) {
				t.Errorf("%s: the key is %q (%v), want %s", test.name, k.ID, err, test.key)
			}
		}
	}
}

// lastOf returns the last part of a composite as all("a","b") writes it, or the text.
func lastOf(text string) string {
	if inner, ok := strings.CutPrefix(text, `all(`); ok {
		parts := strings.Split(strings.Trim(inner, `")`), `","`)
		return parts[len(parts)-1]
	}
	return text
}

func TestADeletionHasNoBody(t *testing.T) {
	t.Parallel()
	u, err := Parse([]string{"debezium"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := u.Unwrap(semel.Message{Body: []byte(`{"before":{"id":1},"after":null,"source":{"table":"orders","lsn":241},"op":"d"}`)})
	op, _ := m.Header("debezium-op")
	if err != nil || m.Body != nil || string(op) != "d" {
		t.Errorf("%q, op %q, %v", m.Body, op, err)
	}
}

// TestChangesAtOnePositionDiffer: the rows of one COPY have one position, and so have those of a
// snapshot.
func TestChangesAtOnePositionDiffer(t *testing.T) {
	t.Parallel()
	u, err := Parse([]string{"debezium"})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for _, test := range []struct{ record, body string }{
		{"", change},
		{"", strings.Replace(change, `"id":1`, `"id":2`, 1)},
		{"", strings.Replace(change, `"op":"c"`, `"op":"r"`, 1)},
		{"", strings.Replace(change, `"lsn":240`, `"lsn":241`, 1)},
		{"", strings.Replace(change, `"orders"`, `"lines"`, 1)},
		{"k2", change},
	} {
		m, err := u.Unwrap(semel.Message{RecordKey: []byte(test.record), Body: []byte(test.body)})
		if err != nil {
			t.Fatal(err)
		}
		k, err := u.Key().Key("", &m)
		if other, known := keys[k.ID]; known || err != nil {
			t.Errorf("%s and %s have the key %q (%v)", test.body, other, k.ID, err)
		}
		keys[k.ID] = test.body
	}
	again, err := u.Unwrap(semel.Message{Body: []byte(strings.Replace(change, `"ts_ms":1700000000999`, `"ts_ms":1700000009999`, 1))})
	if err != nil {
		t.Fatal(err)
	}
	if k, err := u.Key().Key("", &again); err != nil || keys[k.ID] != change {
		t.Errorf("a change that comes again has another key: %q, %v", k.ID, err)
	}
}

func TestAMessageThatCannotBeUnwrappedIsAnErrorOfItsStep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ steps, body, want string }{
		{".Message, json", `{"message":"x"}`, `unwrap: step 1, .Message: .Message is missing: it has message: did you mean .message?`},
		{".Message, json", `{"Message":null}`, `unwrap: step 1, .Message: .Message is null`},
		{".Message, json", `{"Message":"x"}`, `unwrap: step 2, json: it is not JSON: `},
		{"json", `a,b`, `unwrap: json: the body looks like CSV`},
		{"json", `"\ud800"`, `half of a surrogate pair`},
		{".b, base64", `{"b":"a*"}`, `unwrap: step 2, base64: it is not base64: at input byte 1`},
		{"sns", `{"id":1}`, `with raw message delivery the message has no envelope`},
		{"sns", `{"Type":"SubscriptionConfirmation","Message":"m"}`, `its Type is "SubscriptionConfirmation"`},
		{"cloudevents", `{"id":1}`, `.specversion is missing, and there is no header ce-specversion`},
		{"cloudevents", `[{"specversion":"1.0"}]`, `it is a batch of events`},
		{"debezium", `{"id":1}`, `it has no .op with .source`},
		{"debezium", `{"op":"t","source":{}}`, `the op "t" changes no row`},
		{"debezium", "", `tombstones.on.delete=false`},
		{"celery", `{"body":"x","headers":{},"content-type":"application/x-python-serialize"}`, `Semel reads tasks with the serializer json`},
		{"celery", `[1]`, `there is no header id`},
		{"celery", `***`, `neither JSON nor base64`},
		{"eventbridge", `{"id":1}`, `.detail is missing`},
		{"s3", `{"Service":"Amazon S3","Event":"s3:TestEvent"}`, `test event`},
		{"s3", `{"Records":[{},{}]}`, `it has several records`},
		{"s3", `{"Records":[]}`, `.Records is empty`},
		{"s3", `{"Records":[{"a":1}]}`, `.s3.bucket.name`},
	} {
		u, err := Parse(strings.Split(test.steps, ", "))
		if err != nil {
			t.Fatal(err)
		}
		m := semel.Message{Body: []byte(test.body)}
		if test.body == "" {
			m.Body = nil
		}
		if got, err := u.Unwrap(m); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s of %s: %q, %v, want %q", test.steps, test.body, got.Body, err, test.want)
		}
	}
}

func TestParseNamesTheStep(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"snss": "did you mean sns?", "Message": "write .Message for a path", ".": "no step", "": "no step", "jsn": "did you mean json?"} {
		if _, err := Parse([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Parse(nil); err == nil {
		t.Error("no step is no error")
	}
}

// FuzzUnwrap: no body makes a step panic, and no step changes the body.
func FuzzUnwrap(f *testing.F) {
	f.Add(change)
	f.Add(`{"Type":"Notification","Message":"{}","MessageAttributes":{"a":{"Type":"Binary","Value":"aGk="}}}`)
	f.Add(`{"Records":[{"s3":{"bucket":{"name":"b"},"object":{"key":"k"}}}]}`)
	f.Add(`{"body":"W10=","headers":{"id":"t"},"properties":{"body_encoding":"base64"}}`)
	f.Add(`{"specversion":"1.0","id":"e","source":"s","data":{}}`)
	var all []*Unwrapper
	for _, name := range append(Presets(), "json", "base64", ".a[0]") {
		u, err := Parse([]string{name})
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, u)
	}
	f.Fuzz(func(t *testing.T, body string) {
		data := []byte(body)
		for _, u := range all {
			_, _ = u.Unwrap(semel.Message{Body: data})
		}
		if string(data) != body {
			t.Errorf("%q became %q", body, data)
		}
	})
}
