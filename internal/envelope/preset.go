package envelope

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/jsontext"
	"github.com/semel-dev/semel/key"
)

// preset is an envelope that many people use.
type preset struct {
	name string
	// paths are the values that open asks for.
	paths []string
	open  func(m *semel.Message, find *fields) error
	// keys are the composites that can make the key; the first one that is found counts.
	keys [][]string
	// doc says where the message is, and what becomes of the envelope.
	doc string
	// exception is a case that the key does not tell apart, or "".
	exception string
}

func presets() []preset {
	return []preset{
		{"sns", []string{".Type", ".Message", ".MessageId", ".TopicArn", ".Subject", ".Timestamp", ".MessageAttributes"}, openSNS,
			[][]string{{"header:sns-message-id"}}, "Notifications of Amazon SNS. The message is `.Message`.", "an event that its producer publishes twice has two ids in SNS, so that it has its effect twice"},
		{"cloudevents", []string{".", ".specversion", ".id", ".source", ".type", ".time", ".datacontenttype", ".data", ".data_base64"}, openCloudEvent,
			eventKeys(), "CloudEvents, structured or binary. The message is the data.", ""},
		{"debezium", []string{".payload", ".op", ".before", ".after", ".source", ".ts_ms"}, openDebezium,
			[][]string{{"header:debezium-id"}}, "Changes of Debezium. The message is the row after the change; a deletion has no body.",
			"equal rows of a table without a primary key count as one if they have the same position in its log, as those of one COPY or of a snapshot have"},
		{"celery", []string{".", ".body", ".headers", ".properties.body_encoding", ".content-type", ".id", ".task", ".retries"}, openCelery,
			[][]string{{"header:id", "header:retries"}}, "Tasks of Celery, in JSON. The message is the body: the list of arguments.", ""},
		{"eventbridge", []string{".detail", ".id", ".source", ".detail-type", ".time", ".account", ".region"}, openEventBridge,
			[][]string{{"header:eventbridge-id"}}, "Events of Amazon EventBridge. The message is `.detail`.", "an event that its producer puts twice has two ids in EventBridge, so that it has its effect twice"},
		{"s3", []string{".", ".Records", ".Event", ".eventName", ".eventTime", ".s3", ".s3.bucket.name", ".s3.object.key", ".s3.object.versionId", ".s3.object.sequencer", ".responseElements.x-amz-request-id"}, openS3,
			[][]string{{"header:s3-id"}}, "Notifications of Amazon S3. The message is the record.", ""},
	}
}

// Presets returns the names of the presets.
func Presets() []string {
	var names []string
	for _, p := range presets() {
		names = append(names, p.name)
	}
	return names
}

// Describe says what a preset does: where the message is, and its key rule.
func Describe(name string) (doc, keyText string) {
	for _, p := range presets() {
		if p.name == name {
			return p.doc, "`" + strings.Join(p.keys[0], "` with `") + "`"
		}
	}
	return "", ""
}

// rule returns the key rule of the preset.
func (p *preset) rule() (*key.Rule, error) {
	var first []*key.Rule
	for _, composite := range p.keys {
		var all []*key.Rule
		for _, text := range composite {
			rule, err := key.ParseRule(text)
			if err != nil {
				return nil, err
			}
			all = append(all, rule)
		}
		rule, err := all[0], error(nil)
		if len(all) > 1 {
			rule, err = key.All(all...)
		}
		if err != nil {
			return nil, err
		}
		first = append(first, rule)
	}
	if len(first) == 1 {
		return first[0], nil
	}
	return key.First(first...)
}

// fields finds values in documents.
type fields struct {
	at      map[string]int
	paths   []key.Path
	finders sync.Pool // of *key.Finder
}

func fieldsOf(texts []string) (*fields, error) {
	f := &fields{at: map[string]int{}}
	for i, text := range texts {
		path, err := key.ParsePath(text)
		if err != nil {
			return nil, err
		}
		f.paths, f.at[text] = append(f.paths, path), i
	}
	return f, nil
}

// document has the values of one body.
type document struct {
	*fields
	finder *key.Finder
	body   []byte
}

// in reads a body. Call done when its values are no longer used.
func (f *fields) in(body []byte) (*document, error) {
	finder, ok := f.finders.Get().(*key.Finder)
	if !ok {
		var err error
		if finder, err = key.NewFinder(f.paths, nil); err != nil {
			return nil, err
		}
	}
	if err := finder.Find(body); err != nil {
		f.finders.Put(finder)
		return nil, notJSON(body, err)
	}
	return &document{f, finder, body}, nil
}

func (d *document) done() { d.finders.Put(d.finder) }

func (d *document) raw(path string) ([]byte, key.Kind) { return d.finder.Raw(d.at[path]) }

// text returns a string without its quotes, or another scalar as it is written. It is "" for all
// other values, and for a text that is not Unicode.
func (d *document) text(path string) string {
	raw, kind := d.raw(path)
	return scalarOf(raw, kind)
}

func scalarOf(raw []byte, kind key.Kind) string {
	switch kind {
	case key.String:
		if text, err := textOf(raw); err == nil {
			return string(text)
		}
	case key.Number, key.True, key.False:
		return string(raw)
	}
	return ""
}

// want returns the text of a value that the envelope must have.
func (d *document) want(path string) ([]byte, error) {
	raw, kind := d.raw(path)
	switch kind {
	case key.String:
		return textOf(raw)
	case key.Missing, key.Null:
		return nil, lacks(d.body, path, kind)
	}
	return nil, fmt.Errorf("%s is no text but %s", path, kind)
}

// header sets a header to a value, if the envelope has it.
func (d *document) header(m *semel.Message, name, path string) {
	if text := d.text(path); text != "" {
		setHeader(m, name, []byte(text))
	}
}

// setTime sets the time of a message, if the text has one.
func setTime(m *semel.Message, text string) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		m.Time = at
	}
}

func openSNS(m *semel.Message, find *fields) error {
	d, err := find.in(m.Body)
	if err != nil {
		return err
	}
	defer d.done()
	message, err := d.want(".Message")
	if err != nil {
		return fmt.Errorf("it is no notification of SNS: %w; with raw message delivery the message has no envelope, so leave unwrap out", err)
	}
	if kind := d.text(".Type"); kind != "Notification" {
		return fmt.Errorf("it is no notification of SNS, but its Type is %q", kind)
	}
	if attributes, kind := d.raw(".MessageAttributes"); kind == key.Object {
		for name, child, at := jsontext.Next(attributes, 0); child != nil; name, child, at = jsontext.Next(attributes, at) {
			if err := setAttribute(m, name, child); err != nil {
				return err
			}
		}
	}
	d.header(m, "sns-message-id", ".MessageId")
	d.header(m, "sns-topic-arn", ".TopicArn")
	d.header(m, "sns-subject", ".Subject")
	setTime(m, d.text(".Timestamp"))
	m.Body = message
	return nil
}

// setAttribute makes an attribute of a message of SNS a header, as raw message delivery does.
func setAttribute(m *semel.Message, name, attribute []byte) error {
	header, err := textOf(name)
	if err != nil || len(attribute) == 0 || attribute[0] != '{' {
		return err
	}
	var value []byte
	binary := false
	for member, child, at := jsontext.Next(attribute, 0); child != nil; member, child, at = jsontext.Next(attribute, at) {
		if child[0] != '"' {
			continue
		}
		text, err := textOf(child)
		if err != nil {
			return err
		}
		switch string(member) {
		case `"Value"`:
			value = text
		case `"Type"`:
			binary = string(text) == "Binary"
		}
	}
	if binary {
		if value, err = fromBase64(value); err != nil {
			return fmt.Errorf("the attribute %q: %w", header, err)
		}
	}
	setHeader(m, string(header), value)
	return nil
}

// eventPrefixes are those of the attributes of a binary event: of HTTP and NATS, of Kafka, and of
// AMQP.
var eventPrefixes = [...]string{"ce-", "ce_", "cloudEvents:", "cloudEvents_"}

// eventKeys are the composites of source and id with each prefix. A structured event gets the
// first prefix. Its key is the same in every form.
func eventKeys() (keys [][]string) {
	for _, prefix := range eventPrefixes {
		keys = append(keys, []string{"header:" + prefix + "source", "header:" + prefix + "id"})
	}
	return keys
}

func openCloudEvent(m *semel.Message, find *fields) error {
	for _, prefix := range eventPrefixes {
		if _, binary := m.Header(prefix + "specversion"); binary {
			at, _ := m.Header(prefix + "time")
			setTime(m, string(at))
			return nil // the body is the data, and the attributes are headers
		}
	}
	d, err := find.in(m.Body)
	if err != nil {
		return err
	}
	defer d.done()
	event, kind := d.raw(".")
	if kind == key.Array {
		return errors.New("it is a batch of events: at the http source, write split: array")
	}
	for _, path := range []string{".specversion", ".id", ".source"} {
		if d.text(path) == "" {
			return fmt.Errorf("it is no event of CloudEvents: %s is missing, and there is no header ce-specversion", path)
		}
	}
	body, kind := d.raw(".data")
	content := d.text(".datacontenttype")
	switch encoded, in64 := d.raw(".data_base64"); {
	case in64 == key.String:
		var text []byte
		if text, err = textOf(encoded); err == nil {
			body, err = fromBase64(text)
		}
		if err != nil {
			return fmt.Errorf(".data_base64: %w", err)
		}
	case kind == key.String && !isJSONType(content):
		if body, err = textOf(body); err != nil {
			return fmt.Errorf(".data: %w", err)
		}
	}
	for name, child, at := jsontext.Next(event, 0); child != nil; name, child, at = jsontext.Next(event, at) {
		attribute := strings.Trim(string(name), `"`)
		value := scalarOf(child, kindOf(child))
		switch attribute {
		case "data", "data_base64", "datacontenttype":
		default:
			if value != "" {
				setHeader(m, "ce-"+attribute, []byte(value))
			}
		}
	}
	if content == "" {
		content = "application/json"
	}
	setHeader(m, "content-type", []byte(content))
	setTime(m, d.text(".time"))
	m.Body = body
	return nil
}

// isJSONType reports whether a content type is that of JSON, which is the default of an event.
func isJSONType(content string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(content), ";")
	kind = strings.TrimSpace(kind)
	return kind == "" || strings.HasSuffix(kind, "/json") || strings.HasSuffix(kind, "+json")
}

func kindOf(raw []byte) key.Kind {
	switch raw[0] {
	case '"':
		return key.String
	case '{':
		return key.Object
	case '[':
		return key.Array
	case 't':
		return key.True
	case 'f':
		return key.False
	case 'n':
		return key.Null
	}
	return key.Number
}

func openDebezium(m *semel.Message, find *fields) error {
	if m.Body == nil {
		return errors.New("it is the tombstone that follows a deletion: write tombstones.on.delete=false in the connector, since the deletion itself has no body here")
	}
	d, err := find.in(m.Body)
	if err != nil {
		return err
	}
	defer func() { d.done() }()
	if payload, kind := d.raw(".payload"); kind == key.Object { // with the schema of the message
		inner, err := find.in(payload)
		if err != nil {
			return err
		}
		d.done()
		d = inner
	}
	op := d.text(".op")
	source, kind := d.raw(".source")
	if op == "" || kind != key.Object {
		return errors.New("it is no change of a row: it has no .op with .source; events of transactions, heartbeats and schemas have none")
	}
	before, _ := d.raw(".before")
	after, kind := d.raw(".after")
	switch op {
	case "c", "u", "r":
		if kind != key.Object && kind != key.String { // MongoDB has a document in a text
			return fmt.Errorf(".after is %s in a change with the op %q", kind, op)
		}
		body := after
		if kind == key.String {
			if body, err = textOf(after); err != nil {
				return err
			}
		}
		m.Body = body
	case "d":
		m.Body = nil
	default:
		return fmt.Errorf("the op %q changes no row: the ops c, u, d and r do", op)
	}
	place := placeOf(source)
	sum := sha256.New()
	for _, part := range [][]byte{m.RecordKey, before, after} {
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	setHeader(m, "debezium-op", []byte(op))
	setHeader(m, "debezium-table", []byte(place.table))
	setHeader(m, "debezium-id", []byte(place.table+" "+place.position+" "+op+" "+hex.EncodeToString(sum.Sum(nil)[:12])))
	if ms, err := strconv.ParseInt(place.ms, 10, 64); err == nil && ms > 0 && ms < math.MaxInt64/int64(time.Millisecond) {
		m.Time = time.UnixMilli(ms)
	}
	return nil
}

// sourcePlace is where a change is in its database.
type sourcePlace struct{ table, position, ms string }

// positions are the members of source that say where a change is in the log of its database:
// those of PostgreSQL, MySQL, SQL Server, Oracle, MongoDB and Db2.
var positions = map[string]bool{
	"lsn": true, "txId": true, "server_id": true, "gtid": true, "file": true, "pos": true, "row": true, "change_lsn": true, "commit_lsn": true,
	"event_serial_no": true, "scn": true, "commit_scn": true, "rs_id": true, "ssn": true, "redo_thread": true, "row_id": true, "ord": true, "lsid": true, "txnNumber": true,
}

// placeOf reads the member source. Two changes of one statement may have one position, such as the
// rows of a COPY of PostgreSQL, so the position alone is no key.
func placeOf(source []byte) sourcePlace {
	var p sourcePlace
	var names, position []string
	for name, child, at := jsontext.Next(source, 0); child != nil; name, child, at = jsontext.Next(source, at) {
		member, value := strings.Trim(string(name), `"`), scalarOf(child, kindOf(child))
		switch {
		case value == "":
		case member == "name", member == "db", member == "schema", member == "table", member == "collection":
			names = append(names, value)
		case member == "ts_ms":
			p.ms = value
		case positions[member]:
			position = append(position, member+"="+value)
		}
	}
	p.table, p.position = strings.Join(names, "."), strings.Join(position, ",")
	return p
}

func openCelery(m *semel.Message, find *fields) error {
	body := bytes.TrimSpace(m.Body)
	if len(body) > 0 && body[0] != '{' && body[0] != '[' { // SQS and others have the envelope in base64
		decoded, err := fromBase64(body)
		if err != nil {
			return errors.New("it is neither JSON nor base64: Semel reads tasks with the serializer json")
		}
		body = decoded
	}
	d, err := find.in(body)
	if err != nil {
		return err
	}
	defer func() { d.done() }()
	if encoded, kind := d.raw(".body"); kind == key.String { // Redis, SQS and others have headers in the envelope
		inner, err := textOf(encoded)
		if err == nil && d.text(".properties.body_encoding") == "base64" {
			inner, err = fromBase64(inner)
		}
		if err != nil {
			return fmt.Errorf(".body: %w", err)
		}
		if content := d.text(".content-type"); !isJSONType(content) {
			return fmt.Errorf("the task is in %q: Semel reads tasks with the serializer json", content)
		}
		if headers, kind := d.raw(".headers"); kind == key.Object {
			for name, child, at := jsontext.Next(headers, 0); child != nil; name, child, at = jsontext.Next(headers, at) {
				if value := scalarOf(child, kindOf(child)); value != "" {
					setHeader(m, strings.Trim(string(name), `"`), []byte(value))
				}
			}
		}
		task, err := find.in(inner)
		if err != nil {
			return fmt.Errorf(".body: %w", err)
		}
		d.done()
		d, body = task, inner
	}
	for _, name := range []string{"id", "task", "retries"} { // the first protocol has them in the body
		if _, ok := m.Header(name); !ok {
			d.header(m, name, "."+name)
		}
	}
	if _, ok := m.Header("id"); !ok {
		return errors.New("it is no task of Celery: there is no header id, and no .headers.id")
	}
	if _, ok := m.Header("retries"); !ok {
		setHeader(m, "retries", []byte("0"))
	}
	m.Body = body
	return nil
}

func openEventBridge(m *semel.Message, find *fields) error {
	d, err := find.in(m.Body)
	if err != nil {
		return err
	}
	defer d.done()
	detail, kind := d.raw(".detail")
	if kind != key.Object {
		if kind == key.Missing {
			return fmt.Errorf("it is no event of EventBridge: %w", lacks(m.Body, ".detail", kind))
		}
		return fmt.Errorf("it is no event of EventBridge: .detail is %s", kind)
	}
	d.header(m, "eventbridge-id", ".id")
	d.header(m, "eventbridge-source", ".source")
	d.header(m, "eventbridge-detail-type", ".detail-type")
	setTime(m, d.text(".time"))
	m.Body = detail
	return nil
}

func openS3(m *semel.Message, find *fields) error {
	d, err := find.in(m.Body)
	if err != nil {
		return err
	}
	defer func() { d.done() }()
	if d.text(".Event") == "s3:TestEvent" {
		return errors.New("it is the test event that S3 sends when notifications are set up: skip it")
	}
	record, _ := d.raw(".")
	if _, kind := d.raw(".s3"); kind != key.Object { // the http source has split the others
		if record, err = onlyRecord(d); err != nil {
			return err
		}
		inner, err := find.in(record)
		if err != nil {
			return err
		}
		d.done()
		d = inner
	}
	bucket, object := d.text(".s3.bucket.name"), d.text(".s3.object.key")
	if bucket == "" || object == "" {
		return errors.New("it is no notification of S3: the record has no .s3.bucket.name with .s3.object.key")
	}
	event := d.text(".eventName")
	// The sequencer orders the events of one object. Events without one have the id of a request.
	change := d.text(".s3.object.sequencer")
	if change == "" {
		change = d.text(".responseElements.x-amz-request-id")
	}
	if change != "" {
		setHeader(m, "s3-id", []byte(strings.Join([]string{bucket, object, d.text(".s3.object.versionId"), event, change}, " ")))
	}
	setHeader(m, "s3-event", []byte(event))
	setTime(m, d.text(".eventTime"))
	m.Body = record
	return nil
}

// onlyRecord returns the record of a notification, which has no other.
func onlyRecord(d *document) ([]byte, error) {
	list, kind := d.raw(".Records")
	if kind != key.Array {
		return nil, fmt.Errorf("it is no notification of S3: .Records is %s", kind)
	}
	_, record, next := jsontext.Next(list, 0)
	if record == nil {
		return nil, errors.New(".Records is empty")
	}
	if _, second, _ := jsontext.Next(list, next); second != nil {
		return nil, errors.New("it has several records, and a pipeline takes one message out of a message: at the http source, write split: .Records; elsewhere leave unwrap out, and let the consumer read .Records")
	}
	return record, nil
}
