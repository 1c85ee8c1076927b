package records

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// topic creates a topic with two partitions.
func topic(t *testing.T) (addrs []string, name string) {
	t.Helper()
	addrs, name = []string{servers.Kafka(t)}, servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 2, 1, nil, name); err != nil {
		t.Fatal(err)
	}
	return addrs, name
}

func TestVerifyChecksThatATopicHasEachRecordOnce(t *testing.T) {
	t.Parallel()
	addrs, name := topic(t)
	in := Input{Seed: 1, Records: 2000}
	if err := in.Fill(t.Context(), addrs, name, 0, 1000); err != nil {
		t.Fatal(err)
	}
	if err := in.Verify(t.Context(), addrs, name, false); err == nil || !strings.HasSuffix(err.Error(), name+" has 1000 records, want 2000") {
		t.Errorf("half of the records: %v", err)
	}
	if err := in.Fill(t.Context(), addrs, name, 1000, 2000); err != nil {
		t.Fatal(err)
	}
	if err := in.Verify(t.Context(), addrs, name, false); err != nil {
		t.Error(err)
	}
	if err := in.Verify(t.Context(), addrs, name, true); err == nil {
		t.Error("an input with its duplicates has only first records")
	}
}

func TestEventsAreClosedInEveryPartition(t *testing.T) {
	t.Parallel()
	addrs, name := topic(t)
	e := Events{Seed: 1, Records: 100, Groups: 10, Base: time.Now().Add(-time.Hour).Truncate(time.Second), Span: time.Minute}
	if err := e.Fill(t.Context(), addrs, name, 2, 0, 100); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(t.Context(), addrs, name, 2, e.Base.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	closing := map[int32]int{}
	for read := 0; read < 100+2*6; {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			if read++; strings.HasPrefix(string(r.Key), Closing) {
				closing[r.Partition]++
			}
		}
	}
	if closing[0] != 6 || closing[1] != 6 { // a minute, in steps of ten seconds
		t.Errorf("records that close windows, by partition: %v", closing)
	}
}

func TestResultsAreParsed(t *testing.T) {
	t.Parallel()
	r, n, err := ParseResult([]byte(`{"key":"g","start":"2026-01-02T03:00:00Z","end":"2026-01-02T03:01:00Z","values":{"n":7}}`))
	if start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).UnixMilli(); err != nil || n != 7 || r != (Result{"g", start, start + 60_000}) {
		t.Errorf("%+v, %d, %v", r, n, err)
	}
	for _, body := range []string{"{", `{"key":"g","values":{}}`} {
		if _, _, err := ParseResult([]byte(body)); err == nil || !strings.Contains(err.Error(), "records: result ") {
			t.Errorf("%s: %v", body, err)
		}
	}
}
