package kafka

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

const clientSecret = "s3cret/of+the&client" // its encoding in a header differs

// unsecured returns a token that Kafka's validator of unsecured tokens accepts.
func unsecured(lives time.Duration, scope string) string {
	part := func(v map[string]any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now()
	return part(map[string]any{"alg": "none"}) + "." + part(map[string]any{
		"sub": "semel", "scope": strings.Fields(scope), "iat": float64(now.Add(-time.Hour).UnixMilli()) / 1000, "exp": float64(now.Add(lives).UnixMilli()) / 1000,
	}) + "."
}

// issuer is a token endpoint.
type issuer struct {
	*httptest.Server
	ended chan struct{} // closed before the server closes

	mu     sync.Mutex // guards the fields below
	lives  time.Duration
	scopes string                                       // of a client that asks for none
	answer func(w http.ResponseWriter, r *http.Request) // instead of a token, or nil
	issued int
}

func newIssuer(t *testing.T, lives time.Duration) *issuer {
	t.Helper()
	i := &issuer{lives: lives, ended: make(chan struct{})}
	i.Server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(func() {
		close(i.ended)
		i.Close()
	})
	return i
}

func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	answer, lives, scope := i.answer, i.lives, i.scopes
	i.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	id, secret, _ := r.BasicAuth()
	if asked := r.FormValue("scope"); asked != "" {
		scope = asked
	}
	if id != "semel" || secret != "s3cret%2Fof%2Bthe%26client" || r.FormValue("grant_type") != "client_credentials" {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":"invalid_client","error_description":"not %s"}`, secret)
		return
	}
	i.mu.Lock()
	i.issued++
	i.mu.Unlock()
	fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":%d}`, unsecured(lives, scope), int(lives.Seconds()))
}

// set changes what the endpoint answers.
func (i *issuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.issued
}

// login is the field sasl of a client of the endpoint, whose secret is in secretly.
func (i *issuer) login(more string) string {
	return fmt.Sprintf("sasl: { oauthbearer: { token_endpoint: %s/token, client_id: semel, client_secret: '${env:SECRET}'%s } }", i.URL, more)
}

// secretly is the environment of a program that logs in.
var secretly = []string{"SECRET=" + clientSecret}

// permit creates topics and gives the user semel all rights.
func permit(t *testing.T, addr, principal string, topics ...string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.UnknownTopicRetries(-1))
	must(t, err)
	t.Cleanup(client.Close)
	adm := kadm.NewClient(client)
	for _, topic := range topics {
		_, err := adm.CreateTopic(t.Context(), 2, 1, nil, topic)
		must(t, err)
	}
	_, err = adm.CreateACLs(t.Context(), kadm.NewACLs().Allow(principal).AllowHosts("*").Operations(kadm.OpAll).ResourcePatternType(kadm.ACLPatternPrefixed).Topics("").Groups("").TransactionalIDs(""))
	if err == nil {
		_, err = adm.CreateACLs(t.Context(), kadm.NewACLs().Allow(principal).AllowHosts("*").Operations(kadm.OpAll).ResourcePatternType(kadm.ACLPatternLiteral).Topics("*").Groups("*").TransactionalIDs("*"))
	}
	must(t, err)
	return client
}

// moves writes a message, and waits until it is in the topic out.
func moves(t *testing.T, client *kgo.Client, id int) {
	t.Helper()
	adm := kadm.NewClient(client)
	before := written(t, adm, "out")
	must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "in", Value: fmt.Appendf(nil, `{"id":%d}`, id)}).FirstErr())
	if !within(time.Minute, func() bool { return written(t, adm, "out") > before }) {
		t.Fatalf("message %d is not moved", id)
	}
}

// noSecret checks that nothing that logs in was shown.
func noSecret(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		for _, secret := range []string{clientSecret, "s3cret", "eyJ", base64.StdEncoding.EncodeToString([]byte("semel:s3cret"))[:12]} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is shown in\n%s", secret, text)
			}
		}
	}
}

// logOf returns what a program logged.
func logOf(t *testing.T, d *daemon) string {
	t.Helper()
	text, err := os.ReadFile(d.log)
	must(t, err)
	return string(text)
}

// TestTokensAreRenewedWhileATransactionIsOpen has sessions that the broker ends while a
// transaction is open, and tokens that end soon.
func TestTokensAreRenewedWhileATransactionIsOpen(t *testing.T) {
	t.Parallel()
	const session, lives = 3 * time.Second, 5 * time.Second
	program := built(t)
	server := servicestest.StartKafka(t, &services.KafkaOptions{Login: true, Properties: map[string]string{
		"listener.name.login.oauthbearer.connections.max.reauth.ms": fmt.Sprint(session.Milliseconds()), // the broker ends a session that is older
		"listener.name.login.oauthbearer.sasl.jaas.config":          services.KafkaTokens("kafka"),
	}})
	tokens := newIssuer(t, lives)
	client := permit(t, server.Addr(), "User:semel", "in", "out")
	adm := kadm.NewClient(client)
	d := newDaemon(t, program, fmt.Sprintf(`
pipelines:
  once:
    source: { kafka: { brokers: [%[1]q], topics: [in], group: once, %[2]s } }
    key: { id: .id }
    window: 1h
    sink: { kafka: { brokers: [%[1]q], topic: out, %[2]s } }
    transaction: { interval: 4800ms }
    in_flight: { max: 100000 }
    parallel: 1
`, services.KafkaLogin(server), tokens.login(", scope: kafka")))
	d.env = secretly
	d.start(t)
	longest, n, long := time.Duration(0), 0, map[int64]bool{}
	tick := time.NewTicker(200 * time.Millisecond) // more records would end a transaction earlier
	defer tick.Stop()
	for late := time.Now().Add(2 * time.Minute); len(long) < 3 && time.Now().Before(late); <-tick.C {
		for range 2 {
			must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "in", Key: []byte("k"), Value: fmt.Appendf(nil, `{"id":%d}`, n)}).FirstErr())
		}
		n++
		list, err := adm.DescribeTransactions(t.Context())
		must(t, err)
		for _, of := range list {
			open := time.Since(time.UnixMilli(of.StartTimestamp))
			if of.State == "Ongoing" && open > session {
				longest, long[of.StartTimestamp] = max(longest, open), true
			}
		}
	}
	if len(long) < 3 {
		t.Errorf("only %d transactions were open for longer than a session", len(long))
	}
	out := committed(t, server.Addr(), "out", n)
	for i := range n {
		if got := out[fmt.Sprintf(`{"id":%d}`, i)]; got != 1 {
			t.Errorf("message %d is there %d times", i, got)
		}
	}
	d.end(t, syscall.SIGTERM)
	log := logOf(t, d)
	noSecret(t, log)
	t.Logf("%d messages, %d tokens, %d transactions that were open for longer than a session, up to %v", n, tokens.count(), len(long), longest)
	if _, begun, _ := strings.Cut(log, "are up to date"); strings.Contains(begun, `"WARN"`) || strings.Contains(begun, `"ERROR"`) {
		t.Error("a renewal was noticed")
	}
}

// committed reads the committed records of a topic until there are n, and returns how often each
// is there.
func committed(t *testing.T, addr, topic string, n int) map[string]int {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	there, count := map[string]int{}, 0
	for count < n && ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			there[string(r.Value)]++
			count++
		})
	}
	return there
}
