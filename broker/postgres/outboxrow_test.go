package postgres_test

import (
	"errors"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
)

// TestTheOutboxGetsAnEventForEachChange has a stale message, a message without its aggregate, and
// a message with a header that is no text.
func TestTheOutboxGetsAnEventForEachChange(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE c (id text PRIMARY KEY, n int)")
	opts := &postgres.Options{
		Table: "c", Columns: []postgres.Column{{"id", ".id"}, {"n", ".n"}}, Key: []string{"id"}, Version: "n",
		Outbox: &postgres.OutboxRow{Pipeline: "p", Topic: "changed", Aggregate: ".id", Payload: ".event"},
	}
	for _, w := range ways(t, address, pool, opts) {
		exec(t, pool, "DELETE FROM c; DELETE FROM semel_outbox; DELETE FROM semel_keys; DELETE FROM hot_keys")
		list := items(`{"id":"a","n":2,"event":{"to":2}}`, `{"id":"a","n":1,"event":{"to":1}}`, `{"n":1}`, `{"id":"b","n":1}`, `{"id":"d","n":1,"event":"text"}`)
		list[3].Message.Headers = []semel.Header{{Name: "h", Value: []byte("\xff")}}
		list[4].Message.Headers = []semel.Header{{Name: "content-type", Value: []byte("x")}, {Name: "semel-key", Value: []byte("former")}}
		w.process(t.Context(), list)
		wantClasses(t, list, "delivered", "delivered", "permanent", "permanent", "delivered")
		if got, want := one[string](t, pool, "SELECT string_agg(concat_ws('|', aggregate, topic, convert_from(payload, 'UTF8'), headers), '; ' ORDER BY aggregate) FROM semel_outbox"),
			`a|changed|{"to":2}|{"semel-key":"k0","semel-scope":"s","semel-pipeline":"p"}; d|changed|text|{"content-type":"x","semel-key":"k4","semel-scope":"s","semel-pipeline":"p"}`; got != want {
			t.Errorf("%s:\n got %s\nwant %s", w.name, got, want)
		}
		if got := one[string](t, pool, "SELECT string_agg(id || n, ' ' ORDER BY id) FROM c"); got != "a2 d1" {
			t.Errorf("%s: rows %s", w.name, got)
		}
	}
	for _, w := range ways(t, address, pool, &postgres.Options{Outbox: &postgres.OutboxRow{}}) {
		exec(t, pool, "DELETE FROM semel_outbox; DELETE FROM semel_keys; DELETE FROM hot_keys")
		list := items("only an event", "x")
		list[1].Message.Body = nil
		w.process(t.Context(), list)
		wantClasses(t, list, "delivered", "delivered")
		if got := one[string](t, pool, "SELECT string_agg(concat_ws('|', aggregate, topic, coalesce(convert_from(payload, 'UTF8'), 'null')), '; ' ORDER BY seq) FROM semel_outbox"); got != "|only an event; |null" {
			t.Errorf("%s: %s", w.name, got)
		}
	}
	for _, wrong := range []*postgres.Options{
		{Statement: "SELECT 1", Outbox: &postgres.OutboxRow{}}, {Outbox: &postgres.OutboxRow{Aggregate: "amount"}}, {Outbox: &postgres.OutboxRow{Topic: "\xff"}}, {},
	} {
		if _, err := postgres.NewSession(guard(t, pool), wrong); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

func TestOutboxIDIsStable(t *testing.T) {
	t.Parallel()
	const uuid = "018f3c5a-0000-7000-8000-000000000001"
	if got := postgres.OutboxID(semel.Key{Scope: "s", ID: uuid}).String(); got != uuid {
		t.Errorf("a UUID becomes %s", got)
	}
	seen := map[string]semel.Key{}
	for _, k := range []semel.Key{{Scope: "s", ID: "a"}, {Scope: "t", ID: "a"}, {Scope: "sa", ID: ""}, {Scope: "s", ID: "b"}} {
		id := postgres.OutboxID(k)
		if other, twice := seen[id.String()]; twice || id.Version() != 5 || id != postgres.OutboxID(k) {
			t.Errorf("%v has %s, as %v", k, id, other)
		}
		seen[id.String()] = k
	}
	// Consumers remember it.
	if got, want := postgres.OutboxID(semel.Key{Scope: "s", ID: "a"}).String(), "6794981f-d1a3-5aac-b7d6-c7d445601ed7"; got != want {
		t.Errorf("the id of s/a is %s, want %s", got, want)
	}
}
