package kafka

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/programtest"
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
	granted := func() bool { // a broker learns of rights a little later
		list, err := adm.DescribeACLs(t.Context(), kadm.NewACLs().AnyResource().Allow(principal).AllowHosts().Operations().ResourcePatternType(kadm.ACLPatternAny))
		must(t, err)
		n := 0
		for _, of := range list {
			n += len(of.Described)
		}
		return n >= 3
	}
	if !within(time.Minute, granted) {
		t.Fatalf("the broker does not know the rights of %s", principal)
	}
	return client
}

// moves writes a message, and waits until it is in the topic out. Both topics have a prefix.
func moves(t *testing.T, client *kgo.Client, prefix string, id int) {
	t.Helper()
	adm := kadm.NewClient(client)
	out := prefix + "out"
	before := written(t, adm, out)
	must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: prefix + "in", Value: fmt.Appendf(nil, `{"id":%d}`, id)}).FirstErr())
	if !within(time.Minute, func() bool { return written(t, adm, out) > before }) {
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
	if !errors.Is(err, fs.ErrNotExist) { // it was not started
		must(t, err)
	}
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
	if _, begun, _ := strings.Cut(logOf(t, d), "are up to date"); strings.Contains(begun, `"WARN"`) || strings.Contains(begun, `"ERROR"`) {
		t.Error("a renewal was noticed")
	}
	issued := tokens.count()
	// Without a token the open transaction is given up, and its records are decided again.
	tokens.set(func() {
		tokens.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	})
	write := func() {
		must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "in", Key: []byte("k"), Value: fmt.Appendf(nil, `{"id":%d}`, n)}).FirstErr())
		n++
	}
	if !within(time.Minute, func() bool { write(); return strings.Contains(logOf(t, d), "answers 503") }) {
		t.Error("the log does not name the token endpoint")
	}
	tokens.set(func() { tokens.answer = nil })
	write()
	out := committed(t, server.Addr(), "out", n)
	for i := range n {
		if got := out[fmt.Sprintf(`{"id":%d}`, i)]; got != 1 {
			t.Errorf("message %d is there %d times", i, got)
		}
	}
	d.end(t, syscall.SIGTERM)
	noSecret(t, logOf(t, d))
	t.Logf("%d messages, %d tokens before the outage, %d transactions that were open for longer than a session, up to %v", n, issued, len(long), longest)
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

// moving is a pipeline from in to out, with a store next to its file, that logs in somehow. Topics
// and group have a prefix.
func moving(addr, prefix, login string) string {
	return fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  once:
    source: { kafka: { brokers: [%[1]q], topics: [%[3]sin], group: %[3]sonce, start: earliest, %[2]s } }
    key: { id: .id }
    window: 1h
    store: keys
    sink: { kafka: { brokers: [%[1]q], topic: %[3]sout, %[2]s } }
`, addr, login, prefix)
}

// TestTokensOfAScope has a broker that requires a scope.
func TestTokensOfAScope(t *testing.T) {
	t.Parallel()
	server := servicestest.StartKafka(t, &services.KafkaOptions{Login: true, Properties: map[string]string{
		"listener.name.login.oauthbearer.connections.max.reauth.ms": "3600000", // a session ends with its token
		"listener.name.login.oauthbearer.sasl.jaas.config":          services.KafkaTokens("kafka"),
	}})
	for name, test := range map[string]func(t *testing.T, server *services.Server){
		"come from an endpoint or a file or a command": tokensComeFromAnEndpointAFileOrACommand,
		"are explained if missing or refused":          aTokenThatIsMissingOrRefusedIsExplained,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server)
		})
	}
}

func tokensComeFromAnEndpointAFileOrACommand(t *testing.T, server *services.Server) {
	program, prefix := built(t), "sources-"
	client := permit(t, server.Addr(), "User:semel", prefix+"in", prefix+"out")
	tokens := newIssuer(t, time.Minute)
	path := filepath.Join(t.TempDir(), "token")
	const lives = 7 * time.Second // twice as long as the machine stands still
	renew := func() error {
		return errors.Join(os.WriteFile(path+".new", []byte(unsecured(lives, "other kafka")+"\n"), 0o600), os.Rename(path+".new", path))
	}
	must(t, renew())
	renewing, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(renewing)
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := renew(); err != nil {
					t.Error(err)
				}
			case <-stop:
				return
			}
		}
	}()
	defer func() { close(stop); <-renewing }()
	for i, login := range []string{
		tokens.login(", scope: kafka"),
		fmt.Sprintf("sasl: { oauthbearer: { file: %s, extensions: { traceId: abc } } }", path),
		fmt.Sprintf("sasl: { oauthbearer: { command: [cat, %s] } }", path),
	} {
		d := newDaemon(t, program, moving(services.KafkaLogin(server), prefix, login))
		d.env = secretly
		d.start(t)
		for n := range 3 {
			moves(t, client, prefix, i*10+n)
		}
		if i > 0 { // the first token has ended
			within(lives+time.Second, func() bool { return false })
			moves(t, client, prefix, i*10+9)
		}
		out := examine(t, d)
		if !strings.Contains(out, "valid until ") || !strings.Contains(out, "kafka, audience none, issuer none, subject semel") || strings.Contains(out, "broken  ") {
			t.Errorf("doctor says of %s\n%s", login, out)
		}
		d.end(t, syscall.SIGTERM)
		log := logOf(t, d)
		noSecret(t, out, log)
		if strings.Contains(log, "refused") {
			t.Errorf("the log of %s has refusals", login)
		}
	}
}

// aTokenThatIsMissingOrRefusedIsExplained asks doctor, and lets a pipeline run into each
// trouble and out of it again.
func aTokenThatIsMissingOrRefusedIsExplained(t *testing.T, server *services.Server) {
	program, prefix := built(t), "troubles-"
	client := permit(t, server.Addr(), "User:semel", prefix+"in", prefix+"out")
	tokens := newIssuer(t, 4*time.Second)
	tokens.scopes = "kafka"
	d := newDaemon(t, program, moving(services.KafkaLogin(server), prefix, tokens.login("")))
	d.env = secretly
	tokens.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	d.start(t)
	if !within(time.Minute, func() bool { return strings.Contains(logOf(t, d), "answers 401") }) {
		t.Error("at the start, the log does not name the token endpoint")
	}
	tokens.set(func() { tokens.answer = nil })
	moves(t, client, prefix, 1000)
	gives := func(text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, "no token for "+clientSecret)
		}
	}
	for i, c := range []struct {
		name  string
		set   func()
		words []string // cause and remedy
	}{
		{"401", func() { tokens.answer = status(401) }, []string{"answers 401", "correct client_id and client_secret"}},
		{"500", func() { tokens.answer = status(500) }, []string{"answers 500", "is it up"}},
		{"garbage", func() { tokens.answer = gives("<html>") }, []string{"answers something that is not JSON", "is token_endpoint the address of the token endpoint"}},
		{"never", func() {
			tokens.answer = func(_ http.ResponseWriter, r *http.Request) {
				select {
				case <-tokens.ended:
				case <-r.Context().Done():
				}
			}
		}, []string{"no answer from the token endpoint " + tokens.URL, "is it up, and can this machine reach it?"}},
		{"expired", func() { tokens.answer = gives(fmt.Sprintf(`{"access_token":%q}`, unsecured(-time.Minute, "kafka"))) }, []string{"gives a token that ended at ", "compare the clock of this machine"}},
		{"no token", func() { tokens.answer = gives(`{"access_token":"not a token"}`) }, []string{"gives something that is no token"}},
		{"scope", func() { tokens.scopes = "other" }, []string{"the brokers refuse the token (insufficient_scope)", "scope other", "they require scope kafka", "write source.kafka.sasl.oauthbearer.scope: kafka"}},
		{"not of the broker", func() { tokens.answer = gives(`{"access_token":"abc"}`) }, []string{"the brokers refuse the token (invalid_token): it has scope none", "compare its audience, issuer and subject"}},
	} {
		moves(t, client, prefix, i)
		tokens.set(c.set)
		out := examine(t, d)
		for _, word := range c.words {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), word) {
				t.Errorf("%s: doctor lacks %q:\n%s", c.name, word, out)
			}
		}
		noSecret(t, out)
		before := len(logOf(t, d))
		if !within(40*time.Second, func() bool {
			log := logOf(t, d)[before:]
			for _, word := range c.words {
				if !strings.Contains(strings.ReplaceAll(log, "sink.kafka", "source.kafka"), word) {
					return false
				}
			}
			return true
		}) {
			t.Errorf("%s: the log lacks %q:\n%s", c.name, c.words, logOf(t, d)[before:])
		}
		tokens.set(func() { tokens.answer, tokens.scopes = nil, "kafka" })
	}
	moves(t, client, prefix, 100)
	d.end(t, syscall.SIGTERM)
	noSecret(t, logOf(t, d))
	out := committed(t, server.Addr(), prefix+"out", 10)
	for body, n := range out {
		if n != 1 {
			t.Errorf("%s is there %d times", body, n)
		}
	}
}

// TestClientsLogInOverTLS has users with a certificate, with SCRAM, with a password and with a
// token.
func TestClientsLogInOverTLS(t *testing.T) {
	t.Parallel()
	program := built(t)
	dir, strange := programtest.CertifiedDir(t), programtest.CertifiedDir(t)
	server := servicestest.StartKafka(t, &services.KafkaOptions{Login: true, Certificates: dir})
	client := permit(t, server.Addr(), "User:semel", "in", "out")
	permit(t, server.Addr(), "User:CN=semel")
	adm := kadm.NewClient(client)
	_, err := adm.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{{User: "semel", Mechanism: kadm.ScramSha256, Iterations: 4096, Password: "s3cret-scram"}})
	must(t, err)
	tokens := newIssuer(t, time.Hour)
	trust := fmt.Sprintf("tls: { ca: %s/cert.pem }", dir)
	certificate := func(of string) string {
		return fmt.Sprintf("tls: { ca: %[1]s/cert.pem, certificate: %[2]s/cert.pem, key: %[2]s/key.pem }", dir, of)
	}
	for i, c := range []struct {
		name, addr, login string
		refused           []string // what doctor says; nil if it works
	}{
		{"certificate", services.KafkaCertified(server), certificate(dir), nil},
		{"no certificate", services.KafkaCertified(server), trust, []string{"TLS connection", "check the certificates of both sides"}},
		{"another certificate", services.KafkaCertified(server), certificate(strange), []string{"TLS connection", "check the certificates of both sides"}},
		{"untrusted broker", services.KafkaLogin(server), fmt.Sprintf("tls: { ca: %s/cert.pem }, sasl: { mechanism: PLAIN, username: semel, password: semel }", strange), []string{"certificate"}},
		{"SCRAM", services.KafkaLogin(server), trust + ", sasl: { mechanism: SCRAM-SHA-256, username: semel, password: s3cret-scram }", nil},
		{"wrong SCRAM", services.KafkaLogin(server), trust + ", sasl: { mechanism: SCRAM-SHA-256, username: semel, password: other }", []string{"password refused for user semel", "correct source.kafka.sasl"}},
		{"no such mechanism", services.KafkaLogin(server), trust + ", sasl: { mechanism: SCRAM-SHA-512, username: semel, password: other }", []string{"the brokers do not support the SASL mechanism SCRAM-SHA-512", "correct source.kafka.sasl.mechanism"}},
		{"PLAIN", services.KafkaLogin(server), trust + ", sasl: { mechanism: PLAIN, username: semel, password: semel }", nil},
		{"token", services.KafkaLogin(server), trust + ", " + tokens.login(""), nil},
		{"AWS", services.KafkaLogin(server), trust + ", sasl: { aws_msk_iam: { region: eu-west-1 } }", []string{"the brokers do not support the SASL mechanism AWS_MSK_IAM", "correct source.kafka.sasl"}},
	} {
		d := newDaemon(t, program, moving(c.addr, "", c.login))
		d.env = append(secretly, "AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY=s3cret-aws")
		if c.refused == nil {
			d.start(t)
			moves(t, client, "", i)
			d.end(t, syscall.SIGTERM)
		}
		out := examine(t, d)
		for _, word := range c.refused {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), word) {
				t.Errorf("%s: doctor lacks %q:\n%s", c.name, word, out)
			}
		}
		if c.refused == nil && (strings.Contains(out, "broken  ") || !strings.Contains(out, "all that the pipeline uses")) {
			t.Errorf("%s: doctor says\n%s", c.name, out)
		}
		noSecret(t, out, logOf(t, d))
	}
}
