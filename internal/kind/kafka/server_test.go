package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// topics creates topics with two partitions, and returns the brokers.
func topics(t *testing.T, names ...string) (brokers string, client *kgo.Client) {
	t.Helper()
	brokers = servers.Kafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	adm := kadm.NewClient(client)
	made, err := adm.CreateTopics(t.Context(), 2, 1, nil, names...)
	if err := errors.Join(err, made.Error()); err != nil {
		t.Fatal(err)
	}
	var known error
	ended := retry.Poll(t.Context(), time.Now().Add(time.Minute), func() bool { // a broker learns of a topic a little later
		there, err := adm.ListTopics(t.Context(), names...)
		known = errors.Join(err, there.Error())
		return known == nil
	})
	if err := errors.Join(known, ended); err != nil {
		t.Fatal(err)
	}
	return brokers, client
}

// has checks that a finding about a kind starts with a text.
func has(t *testing.T, f *config.File, of config.Kind, want string) {
	t.Helper()
	if lines, err := kindtest.Examine(t, f, of); err != nil || !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
		t.Errorf("%T: %q, %v; want %s", of, lines, err, want)
	}
}

func TestMessagesPassThroughTheBrokers(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	topic := servicestest.Topic()
	brokers, _ := topics(t, topic)
	out := kindtest.Parse(t, kindtest.WithSink("{ kafka: { brokers: ['"+brokers+"'], topic: "+topic+", compression: zstd } }"))
	in := kindtest.Parse(t, kindtest.WithSource("{ kafka: { brokers: ['"+brokers+"'], topics: ["+topic+"], group: "+topic+" } }"))
	has(t, out, out.Pipelines[0].Sink, "fine ")
	has(t, in, in.Pipelines[0].Source, "fine ")
	kindtest.Deliver(t, out, `{"id":1}`, `{"id":2}`)
	both := []string{`{"id":1}`, `{"id":2}`}
	if got := kindtest.Sample(t, in); !slices.Equal(got, both) {
		t.Errorf("the sample is %q, want %q", got, both)
	}
	if got := kindtest.Receive(t, in, 2); !slices.Equal(got, both) {
		t.Errorf("received %q, want %q", got, both)
	}
	for _, end := range []struct {
		f    *config.File
		of   any
		what string
	}{{in, in.Pipelines[0].Source, "in the input of p (the time that its producer gave)"}, {out, out.Pipelines[0].Sink, "published by p (the time of the message, not of its publication)"}} {
		found, looked := kindtest.Trace(t, end.f, end.of.(kindtest.Tracer), `{"id":1}`)
		if len(found) != 1 || !strings.HasPrefix(found[0], "topic "+topic+" ") || !strings.HasSuffix(found[0], ": "+end.what) || len(looked) != 1 || !strings.HasSuffix(looked[0], ": 2") {
			t.Errorf("found %q, looked at %q", found, looked)
		}
	}
	none := kindtest.Parse(t, kindtest.WithSink("{ kafka: { brokers: ['"+brokers+"'], topic: "+topic+"-none } }"))
	if found, looked := kindtest.Trace(t, none, none.Pipelines[0].Sink, "1"); len(found) > 0 || !slices.Equal(looked, []string{"topic " + topic + "-none: there is no such topic yet"}) {
		t.Errorf("found %q, looked at %q", found, looked)
	}
	has(t, none, none.Pipelines[0].Sink, "broken ")
}

// TestTopicsAreFoundByAPattern looks at a pipeline before and after there are topics that match.
func TestTopicsAreFoundByAPattern(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	name := servicestest.Topic()
	brokers, client := topics(t, name)
	f := kindtest.Parse(t, kindtest.WithSource("{ kafka: { brokers: ['"+brokers+"'], topics: { pattern: '"+name+"-.*' }, group: "+name+" } }", ", parked: { topic: "+name+" }"))
	p := f.Pipelines[0]
	source := p.Source.(*kafka.Source)
	has(t, f, source, "warning topics that match "+name+"-.*: none now")
	if got := kindtest.Sample(t, f); len(got) > 0 {
		t.Errorf("the sample is %q", got)
	}
	if found, looked := kindtest.Trace(t, f, source, `{"id":1}`); len(found) > 0 || !slices.Equal(looked, []string{"input of p: there is no topic that matches " + name + "-.* yet"}) {
		t.Errorf("found %q, looked at %q", found, looked)
	}
	var want []string
	for _, topic := range []string{name + "-a", name + "-b"} {
		topics(t, topic)
		body := `{"id":"` + topic + `"}`
		want = append(want, body)
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(body)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	has(t, f, source, "fine topics that match "+name+"-.*: 2 now: "+name+"-a, "+name+"-b")
	for what, got := range map[string][]string{"the sample": kindtest.Sample(t, f), "received": kindtest.Receive(t, f, 2)} {
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	if found, looked := kindtest.Trace(t, f, source, name+"-a"); len(found) != 1 || !strings.HasPrefix(found[0], "topic "+name+"-a ") || len(looked) != 1 {
		t.Errorf("found %q, looked at %q", found, looked)
	}
	admin, places, err := source.OpenAdmin(t.Context(), f, p)
	if err != nil {
		t.Fatal(err)
	}
	admin.Close()
	if all := []string{name + "-a", name + "-b", name}; !slices.Equal(places.Topics, all) {
		t.Errorf("topics %q, want %q", places.Topics, all)
	}
	letters, err := source.OpenParked(t.Context(), f, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.Close(); err != nil {
		t.Error(err)
	}
}

// TestTheDoctorComparesClusters has a cluster under two addresses, which lint takes for two.
func TestTheDoctorComparesClusters(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	name := servicestest.Topic()
	brokers, _ := topics(t, name+"-in", name+"-parked")
	_, port, _ := strings.Cut(brokers, ":")
	const file = `
stores: { k: { embedded: { path: keys } } }
pipelines:
  p: { key: { id: .id }, store: k, source: { kafka: { brokers: ["%[1]s"], topics: { pattern: '%[3]s-.*' }, group: %[3]s } }, sink: { stdout: } }
  q: { key: { id: .id }, store: k, source: { kafka: { brokers: ["%[2]s"], topics: [%[3]s-in], group: %[3]s-q } }, sink: { stdout: }, parked: { topic: "%[3]s-parked" } }
`
	f := kindtest.Parse(t, fmt.Sprintf(file, brokers, "localhost:"+port, name))
	has(t, f, f.Pipelines[0].Source, "broken topic "+name+"-parked: also the topic of pipeline q for parked messages: its brokers are the same cluster under other addresses")
	lines, err := kindtest.Examine(t, f, f.Pipelines[1].Source)
	if err != nil || slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "other addresses") }) {
		t.Errorf("%q, %v", lines, err)
	}
}

// TestMessagesNameTheirTopics has a sink that may write all topics with a prefix.
func TestMessagesNameTheirTopics(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	brokers, client := topics(t, name+".a", name+".b", "other-"+name)
	f := kindtest.Parse(t, kindtest.WithSink("{ kafka: { brokers: ['"+brokers+"'], topic: { from: 'header:to', allow: ['"+name+".*'] } } }"))
	sink := f.Pipelines[0].Sink.(*kafka.Sink)
	for _, topic := range []string{name + ".b", "other-" + name} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(`{"id":"1"}`)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	found, looked := kindtest.Trace(t, f, sink, "1")
	if len(found) != 1 || !strings.HasPrefix(found[0], "topic "+name+".b ") || len(looked) != 1 || strings.Contains(looked[0], "other-") {
		t.Errorf("found %q, looked at %q", found, looked)
	}
	to := func(topic string) *semel.Message {
		return &semel.Message{Headers: []semel.Header{{Name: "to", Value: []byte(topic)}}}
	}
	if got := sink.About().Address(to(name + ".a")); got != "topic "+name+".a" {
		t.Errorf("the address is %q", got)
	}
	if got := sink.About().Address(to("other")); got != "" {
		t.Errorf("the address of a topic that is not allowed is %q", got)
	}
}

// TestATransactionCommitsOutputsAndKeys runs a pipeline without a store, and asks for its
// keys before and after.
func TestATransactionCommitsOutputsAndKeys(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	name := servicestest.Topic()
	brokers, client := topics(t, name, name+"-out", name+"-parked")
	f := kindtest.Parse(t, "pipelines: { p: { key: { id: .id }, source: { kafka: { brokers: ['"+brokers+"'], topics: ["+name+"], group: "+name+" } }, sink: { kafka: { brokers: ['"+brokers+"'], topic: "+name+"-out } }, transaction: { state: '"+t.TempDir()+"' } } }")
	p := f.Pipelines[0]
	source := p.Source.(*kafka.Source)
	key := semel.Key{Scope: "p", ID: "1"}
	keys := []config.OriginKey{{Key: key, Source: name, Partition: 0}, {Key: key, Source: name, Partition: 1}}
	if records, err := source.Records(t.Context(), f, p, keys); err != nil || len(records) != 2 || records[0].State == semel.Done || records[1].State == semel.Done {
		t.Errorf("it has never run: %+v, %v", records, err)
	}
	if _, looked := kindtest.Trace(t, f, source, "1"); len(looked) != 2 || !strings.HasPrefix(looked[0], "keys of p: not seen: p has never run: ") {
		t.Errorf("looked at %q", looked)
	}
	has(t, f, source, "notice ")
	for range 2 {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: name, Key: []byte("k"), Value: []byte(`{"id":"1"}`)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	runnable, err := source.OpenTransaction(&config.Env{File: f, Pipeline: p})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runnable.Run(ctx) }()
	reader, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics(name+"-out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	patient, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	fetches := reader.PollFetches(patient)
	if records := fetches.Records(); fetches.Err() != nil || len(records) != 1 || string(records[0].Value) != `{"id":"1"}` {
		t.Errorf("outputs %v, %v", records, fetches.Err())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	records, err := source.Records(t.Context(), f, p, keys)
	if err != nil || len(records) != 2 || records[0].State == records[1].State || !strings.HasPrefix(records[0].Origin+records[1].Origin, name+" ") {
		t.Errorf("the records by partition are %+v, %v", records, err) // the one of them has all records with this key
	}
	admin, places, err := source.OpenAdmin(t.Context(), f, p)
	if err != nil {
		t.Fatal(err)
	}
	admin.Close()
	if want := []string{name, name + "-keys", name + "-out", name + "-parked"}; !slices.Equal(places.Topics, want) || !slices.Equal(places.Groups, []string{name}) {
		t.Errorf("topics %q and groups %q, want %q", places.Topics, places.Groups, want)
	}
}

func TestMessagesAreParkedInATopic(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	brokers, _ := topics(t, name)
	f := kindtest.Parse(t, kindtest.WithSource("{ kafka: { brokers: ['"+brokers+"'], topics: ["+name+"], group: "+name+" } }", ", parked: { topic: "+name+"-aside }"))
	p := f.Pipelines[0]
	of := p.Source.(config.Topics)
	if _, err := of.OpenParked(t.Context(), f, p); !errors.Is(err, config.ErrNoTopic) {
		t.Errorf("a topic that does not exist: %v", err)
	}
	topics(t, name+"-aside")
	parker, err := of.OpenParker(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := parker.Close(); err != nil {
		t.Error(err)
	}
	letters, err := of.OpenParked(t.Context(), f, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.Close(); err != nil {
		t.Error(err)
	}
}

// TestATrialDecidesWithoutBrokers sends a message twice.
func TestATrialDecidesWithoutBrokers(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, inTransaction("", ""))
	p, now := f.Pipelines[0], time.Now()
	trial, err := p.Source.(*kafka.Source).Try(f, p, now, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
		m := &semel.Message{Body: []byte(`{"id":"1"}`), Time: now, Origin: semel.Origin{Source: "in", Offset: int64(i)}}
		if got, err := trial.Send(t.Context(), now, m); err != nil || got.Decision != want || got.Key != (semel.Key{Scope: "p", ID: "1"}) {
			t.Errorf("%+v, %v; want %v", got, err, want)
		}
	}
	if results, err := trial.Pass(t.Context(), now.Add(time.Hour)); err != nil || len(results) > 0 {
		t.Errorf("nothing was held: %q, %v", results, err)
	}
	if kafka.Repartitions(p) || !kafka.Repartitions(kindtest.Parse(t, inTransaction(", repartition: true", "")).Pipelines[0]) {
		t.Error("the stage for keys is not recognised")
	}
}

func TestRowsOfTablesAreRead(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	brokers, client := topics(t, name)
	for _, row := range []string{"ann", "bob"} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: name, Key: []byte(row), Value: []byte("{}"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(row)}}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	f := kindtest.Parse(t, strings.ReplaceAll(inTransaction("", ", filter: 'has(tables.c)', tables: { c: { topic: "+name+", by: .c } }"), "h:1", brokers))
	var keys []string
	if err := f.Pipelines[0].Source.(*kafka.Source).ReadRows(t.Context(), f, f.Pipelines[0], func(m *semel.Message) {
		if h, ok := m.Header("h"); !ok || string(h) != string(m.RecordKey) {
			t.Errorf("the row of %s has the header %q", m.RecordKey, h)
		}
		keys = append(keys, string(m.RecordKey))
	}); err != nil {
		t.Fatal(err)
	}
	if slices.Sort(keys); !slices.Equal(keys, []string{"ann", "bob"}) {
		t.Errorf("rows of %q", keys)
	}
}

// TestBrokersThatDoNotAnswerAreReported has an address where no process listens.
func TestBrokersThatDoNotAnswerAreReported(t *testing.T) {
	t.Parallel()
	address := servicestest.FreeAddr(t)
	f := kindtest.Parse(t, kindtest.WithSink("{ kafka: { brokers: ['"+address+"'], topic: t } }"))
	lines, err := kindtest.Examine(t, f, f.Pipelines[0].Sink)
	if err == nil || !strings.Contains(err.Error(), "refused") || len(lines) > 0 {
		t.Errorf("%q, %v", lines, err)
	}
	said := f.Pipelines[0].Sink.Advise(f, f.Pipelines[0], "sink.kafka", err)
	if said == nil || !strings.Contains(said.Error(), address) {
		t.Errorf("%v is explained as %v", err, said)
	}
}

func TestErrorsOfBrokersHaveACauseAndARemedy(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: [in], group: g, sasl: { mechanism: PLAIN, username: app, password: secret1 } } }"))
	p := f.Pipelines[0]
	for _, c := range []struct {
		err  error
		want string // cause: remedy
	}{
		{kerr.SaslAuthenticationFailed, "password refused for user app: correct source.kafka.sasl"},
		{kerr.UnsupportedSaslMechanism, "the brokers do not support the SASL mechanism PLAIN: correct source.kafka.sasl.mechanism"},
		{kerr.IllegalSaslState, "the listener of the brokers asks for no login: correct the port in source.kafka.brokers, or leave source.kafka.sasl out"},
		{kerr.InconsistentGroupProtocol, "end the other members of the group, or write another source.kafka.group or protocol"},
		{io.EOF, ""},
		{&net.OpError{Op: "dial", Err: io.EOF}, ""},
	} {
		got := ""
		if said := p.Source.Advise(f, p, "source.kafka", fmt.Errorf("kafka: %w", c.err)); said != nil {
			got = said.Cause + ": " + said.Remedy
		}
		if !strings.HasSuffix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// TestLintWarnsOfMessagesThatWindowsAndKeepLose has aggregates and keep rules whose settings lose
// records, or hold them for too long.
func TestLintWarnsOfMessagesThatWindowsAndKeepLose(t *testing.T) {
	t.Parallel()
	windows := func(more string) string {
		return inTransaction(", retention: 1d", ", aggregate: { by: .g, over: { tumbling: 1h }, values: { n: count }"+more+" }")
	}
	keep := func(what string) string {
		return strings.Replace(inTransaction(", retention: 1d", ""), "id: .id", "id: .id, keep: "+what, 1)
	}
	for text, want := range map[string]string{
		windows(", grace: 1m, late: drop"): "warning loss pipelines.p.aggregate.late: drop",
		windows(""):                        "notice  pipelines.p.aggregate.grace: 0s",
		windows(", idle: forever"):         "notice  pipelines.p.aggregate.idle: forever",
		keep("{ newest: .v }"):             "notice  pipelines.p.key.keep.newest: .v",
		keep("{ last: { tumbling: 1h }, late: drop, grace: 1m }"): "warning loss pipelines.p.key.keep.late: drop",
		keep("{ last: { tumbling: 1h } }"):                        "notice  pipelines.p.key.keep.grace: 0s",
		keep("{ last: { tumbling: 1h }, idle: forever }"):         "notice  pipelines.p.key.keep.idle: forever",
	} {
		if found := strings.Join(kindtest.Findings(kindtest.Parse(t, text)), "\n"); !strings.Contains(found, want) {
			t.Errorf("%s\n%s\nwant %s", text, found, want)
		}
	}
	short := strings.Replace(windows(", grace: 1m"), ", aggregate:", ", window: 30m, aggregate:", 1)
	if found := strings.Join(kindtest.Findings(kindtest.Parse(t, short)), "\n"); !strings.Contains(found, "warning repeat pipelines.p.window: 30m, but a window takes records for up to 1h") {
		t.Errorf("%s", found)
	}
}
