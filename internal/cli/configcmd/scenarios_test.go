package configcmd_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func everyText() (list []string) {
	for i := range programtest.Distinct {
		list = append(list, programtest.EventText(i))
	}
	return list
}

func TestScenariosOnKafkaRunAsPrinted(t *testing.T) {
	t.Parallel()
	brokers := servicestest.StartKafka(t, nil).Addr()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	topics := []string{"events", "clicks", "orders", "charges", "payments"}
	for _, topic := range topics {
		if _, err := admin.CreateTopics(t.Context(), 2, 1, nil, topic, topic+"-clean", topic+"-parked"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for i := range programtest.Distinct {
				record := &kgo.Record{Topic: topic, Key: fmt.Append(nil, i), Value: []byte(programtest.EventText(i))}
				if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	t.Run("run", func(t *testing.T) {
		kafka := map[string]string{"KAFKA_BROKERS": brokers}
		for name, topic := range map[string]string{"kafka-to-kafka": "events-clean", "streams": "clicks-clean"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				programtest.OpenScenario(t, name, kafka).Until(committed(t, brokers, topic), everyText())
			})
		}
		t.Run("filter", func(t *testing.T) {
			t.Parallel()
			var want []string
			for i := 5; i < programtest.Distinct; i++ {
				want = append(want, fmt.Sprintf(`{"order":"o%d","amount":"%d.50","customer":"c"}`, i, i))
			}
			programtest.OpenScenario(t, "filter", kafka).Until(committed(t, brokers, "orders-clean"), want)
		})
		for name, sql := range map[string]string{
			"kafka-to-postgres": "SELECT event_id FROM orders",
			"financial":         "SELECT 'e' || substr(id, 2) FROM payments",
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := programtest.OpenScenario(t, name, map[string]string{"KAFKA_BROKERS": brokers, "DATABASE_URL": programtest.Servers.Database(t)})
				s.Until(func() []string { return s.Query(sql) }, programtest.EveryEvent("e"))
			})
		}
		t.Run("kafka-to-api", func(t *testing.T) {
			t.Parallel()
			seen := newJournal(t)
			redis := servicestest.StartRedis(t, nil) // its own, because the scenario sets no prefix
			programtest.OpenScenario(t, "kafka-to-api", map[string]string{
				"KAFKA_BROKERS": brokers, "DATABASE_URL": programtest.Servers.Database(t), "REDIS_URL": redis.URL(), "API_URL": seen.URL,
			}).Until(seen.bodies, everyText())
		})
		t.Run("windows", func(t *testing.T) {
			t.Parallel()
			testWindows(t, client, kafka)
		})
		t.Run("join", func(t *testing.T) {
			t.Parallel()
			testJoin(t, client, kafka)
		})
		t.Run("latest", func(t *testing.T) {
			t.Parallel()
			testLatest(t, client, kafka)
		})
		t.Run("order-service", func(t *testing.T) {
			t.Parallel()
			testOrderService(t, brokers)
		})
		t.Run("analytics", func(t *testing.T) {
			t.Parallel()
			s := programtest.OpenScenario(t, "analytics", kafka)
			s.Until(func() []string {
				text, err := os.ReadFile(filepath.Join(filepath.Dir(s.File), "clicks.jsonl"))
				if err != nil {
					return nil
				}
				return sortedLines(string(text))
			}, everyText())
		})
	})
}

// closeSoon lets the last windows close ten seconds after the last message, not a minute.
func closeSoon(s *programtest.Scenario) {
	s.Helper()
	text := programtest.ReadFile(s.T, s.File)
	short := strings.Replace(text, " idle: 1m ", " idle: 10s ", 1)
	if short == text {
		s.Fatalf("the scenario closes its windows at another time:\n%s", text)
	}
	programtest.WriteFile(s.T, s.File, short)
}

// testWindows writes sales of two customers, each twice, and one that is late. A later sale
// closes the windows before it, and the last window is closed when no more sales come.
func testWindows(t *testing.T, client *kgo.Client, env map[string]string) {
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 2, 1, nil, "sales", "sales-by-minute", "sales-parked"); err != nil {
		t.Fatal(err)
	}
	minute := time.Now().Add(-time.Hour).Truncate(time.Minute)
	sell := func(customer string, order, cents int, at time.Time) {
		text := fmt.Sprintf(`{"order_id":"%s%d","customer":%q,"cents":%d}`, customer, order, customer, cents)
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "sales", Key: []byte(customer), Value: []byte(text), Timestamp: at}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	customers := []string{"ann", "bob"} // they may be in one partition
	result := func(customer string, start time.Time, values string) {
		want = append(want, fmt.Sprintf(`{"key":%q,"start":%q,"end":%q,"values":{%s}}`, customer, start.UTC().Format(time.RFC3339), start.UTC().Add(time.Minute).Format(time.RFC3339), values))
	}
	for _, customer := range append(customers, customers...) {
		sell(customer, 1, 100, minute)
		sell(customer, 2, 250, minute.Add(30*time.Second))
	}
	for _, customer := range customers {
		sell(customer, 3, 7, minute.Add(10*time.Minute))
	}
	for _, customer := range customers {
		sell(customer, 4, 999, minute) // late
		result(customer, minute, `"orders":2,"cents":350,"largest":250`)
		result(customer, minute.Add(10*time.Minute), `"orders":1,"cents":7,"largest":7`)
	}
	s := programtest.OpenScenario(t, "windows", env)
	closeSoon(s)
	s.Until(committed(t, env["KAFKA_BROKERS"], "sales-by-minute"), want)
	parked := committed(t, env["KAFKA_BROKERS"], "sales-parked")
	for deadline := time.Now().Add(time.Minute); len(parked()) < 2 && time.Now().Before(deadline); {
		<-time.After(50 * time.Millisecond)
	}
	if late := parked(); len(late) != 2 || !strings.Contains(late[0], "999") || !strings.Contains(late[1], "999") {
		t.Errorf("parked %q, want the two late sales", late)
	}
}

// testJoin writes invoices of three customers, each twice: one is active, one is not, and one
// has no row.
func testJoin(t *testing.T, client *kgo.Client, env map[string]string) {
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopics(t.Context(), 2, 1, nil, "invoices", "invoices-by-tier", "invoices-parked"); err != nil {
		t.Fatal(err)
	}
	compact := "compact"
	if _, err := admin.CreateTopics(t.Context(), 3, 1, map[string]*string{"cleanup.policy": &compact}, "customers"); err != nil {
		t.Fatal(err)
	}
	write := func(topic, key, text string) {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(text)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	write("customers", "ann", `{"active":true,"tier":"old"}`)
	write("customers", "ann", `{"active":true,"tier":"gold"}`)
	write("customers", "42", `{"active":false}`)
	var want []string
	for range 2 {
		for i, customer := range []string{`"ann"`, `42`, `"eve"`, `"ann"`} {
			write("invoices", "k", fmt.Sprintf(`{"invoice_id":"i%d","customer_id":%s,"cents":%d}`, i, customer, i))
		}
	}
	for _, i := range []int{0, 3} {
		want = append(want, fmt.Sprintf(`{"invoice":"i%d","cents":%d,"tier":"gold"}`, i, i))
	}
	s := programtest.OpenScenario(t, "join", env)
	s.Until(committed(t, env["KAFKA_BROKERS"], "invoices-by-tier"), want)
	parked := committed(t, env["KAFKA_BROKERS"], "invoices-parked")
	for deadline := time.Now().Add(time.Minute); len(parked()) < 2 && time.Now().Before(deadline); {
		<-time.After(50 * time.Millisecond)
	}
	for _, invoice := range parked() {
		if !strings.Contains(invoice, "eve") {
			t.Errorf("parked %s", invoice)
		}
	}
	if n := len(parked()); n != 2 {
		t.Errorf("%d invoices are parked, want that of eve twice", n)
	}
	doctor := s.Doctor() // it warns of one replica
	if want := "customers, 3 partitions, cleanup.policy compact"; !strings.Contains(doctor.Stdout, want) {
		t.Errorf("doctor lacks %q:\n%s", want, doctor.Stdout)
	}
}

// testLatest writes statuses of two orders, out of order and each twice, and one that is
// late. The last status of the last minute is written when no more come.
func testLatest(t *testing.T, client *kgo.Client, env map[string]string) {
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 2, 1, nil, "statuses", "latest-statuses", "statuses-parked"); err != nil {
		t.Fatal(err)
	}
	minute := time.Now().Add(-time.Hour).Truncate(time.Minute)
	body := func(order, status string) string { return fmt.Sprintf(`{"order_id":%q,"status":%q}`, order, status) }
	set := func(order, status string, at time.Time) {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "statuses", Key: []byte(order), Value: []byte(body(order, status)), Timestamp: at}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	orders := []string{"ann-1", "bob-1"} // they may be in one partition
	for _, order := range append(orders, orders...) {
		set(order, "paid", minute.Add(20*time.Second))
		set(order, "shipped", minute.Add(40*time.Second))
		set(order, "open", minute)
	}
	for _, order := range orders {
		set(order, "delivered", minute.Add(10*time.Minute))
	}
	for _, order := range orders {
		set(order, "lost", minute) // late
		want = append(want, body(order, "shipped"), body(order, "delivered"))
	}
	s := programtest.OpenScenario(t, "latest", env)
	closeSoon(s)
	s.Until(committed(t, env["KAFKA_BROKERS"], "latest-statuses"), want)
	parked := committed(t, env["KAFKA_BROKERS"], "statuses-parked")
	for deadline := time.Now().Add(time.Minute); len(parked()) < 2 && time.Now().Before(deadline); {
		<-time.After(50 * time.Millisecond)
	}
	if late := parked(); len(late) != 2 || !strings.Contains(late[0], "lost") || !strings.Contains(late[1], "lost") {
		t.Errorf("parked %q, want the two late statuses", late)
	}
}

// testOrderService sends each request twice to the service of the scenario, and expects one
// order, one shipment and one request to the other company for each.
func testOrderService(t *testing.T, brokers string) {
	seen := newJournal(t)
	admin, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	s := programtest.OpenScenario(t, "order-service", map[string]string{"KAFKA_BROKERS": brokers, "DATABASE_URL": programtest.Servers.Database(t), "API_URL": seen.URL})
	text := bytes.ReplaceAll([]byte(programtest.ReadFile(t, s.File)), []byte("topics: [orders]"), []byte("topics: [requests]")) // another scenario fills orders
	programtest.WriteFile(t, s.File, string(bytes.ReplaceAll(text, []byte("topic: orders"), []byte("topic: requests"))))
	if _, err := kadm.NewClient(admin).CreateTopics(t.Context(), 2, 1, nil, "requests"); err != nil {
		t.Fatal(err)
	}
	service := filepath.Join(t.TempDir(), "order-service")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", service, "../../../examples/order-service").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	address := servicestest.FreeAddr(t)
	command := exec.CommandContext(t.Context(), service, "-listen", address)
	command.Env = append(os.Environ(), "DATABASE_URL="+s.Env["DATABASE_URL"])
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()         // it was killed
	})
	var want []string
	for i := range programtest.Distinct {
		want = append(want, fmt.Sprintf("o%d", i))
		for range 2 {
			placeOrder(t, address, i)
		}
	}
	s.Until(func() []string { return append(s.Query("SELECT order_id FROM shipments"), seen.bodies()...) }, append(everyText(), want...))
	if got := s.Query("SELECT id FROM orders"); !slices.Equal(got, want) {
		t.Errorf("orders %q", got)
	}
	why := s.Semel("why", "k3", "--config", s.File, "--caller", "alice").Stdout
	for _, place := range []string{"store db: first seen", "published by relay", "store db, pipeline shipping: first seen at requests", "store db, pipeline notify: first seen at requests"} {
		if !strings.Contains(why, place) {
			t.Errorf("why lacks %q:\n%s", place, why)
		}
	}
}

// placeOrder sends an order until it is answered.
func placeOrder(t *testing.T, address string, i int) {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/orders", strings.NewReader(programtest.EventText(i)))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Idempotency-Key", fmt.Sprint("k", i))
		request.Header.Set("X-Customer", "alice")
		answer, err := http.DefaultClient.Do(request)
		if err != nil && time.Now().Before(late) {
			continue // the service does not listen yet
		}
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusCreated {
			text, _ := io.ReadAll(answer.Body) // for people
			t.Fatal(answer.Status, string(text))
		}
		return
	}
}

func TestScenarioOnNATSRunsAsPrinted(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, nil)
	js := programtest.ConnectJetStream(t, server.URL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	for n := range 2 * programtest.Distinct {
		if _, err := js.Publish(t.Context(), "orders.new", []byte(programtest.EventText(n%programtest.Distinct))); err != nil {
			t.Fatal(err)
		}
	}
	s := programtest.OpenScenario(t, "nats", map[string]string{"NATS_SERVERS": server.Addr(), "DATABASE_URL": programtest.Servers.Database(t)})
	unsettled := func() int {
		consumer, err := js.Consumer(t.Context(), "ORDERS", "orders-to-postgres")
		if err != nil {
			t.Fatal(err)
		}
		info := consumer.CachedInfo()
		return info.NumAckPending + int(info.NumPending)
	}
	s.Until(func() []string {
		rows := s.Query("SELECT event_id FROM orders")
		if len(rows) > 0 && unsettled() > 0 { // repetitions are on their way
			return nil
		}
		return rows
	}, programtest.EveryEvent("e"))
	if n := unsettled(); n > 0 {
		t.Errorf("after a clean end %d messages are not acknowledged", n)
	}
}

// committed returns what a read_committed reader has read of a topic so far.
func committed(t *testing.T, brokers, topic string) func() []string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var list []string
	return func() []string {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 200*time.Millisecond)
		defer cancel()
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { list = append(list, string(r.Value)) })
		slices.Sort(list)
		return list
	}
}

// journal is a server that records every body.
type journal struct {
	*httptest.Server
	mu   sync.Mutex
	list []string
}

func newJournal(t *testing.T) *journal {
	j := &journal{}
	j.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.list = append(j.list, string(body))
	}))
	t.Cleanup(j.Close)
	return j
}

func (j *journal) bodies() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(slices.Values(j.list))
}

func TestScenariosOverHTTPRunAsPrinted(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"http-to-postgres", "http-to-api"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := newJournal(t)
			env := map[string]string{"LISTEN": servicestest.FreeAddr(t), "API_URL": seen.URL}
			if name == "http-to-postgres" {
				env["DATABASE_URL"] = programtest.Servers.Database(t)
			}
			s := programtest.OpenScenario(t, name, env)
			stop := programtest.BackgroundIn(t, s.Getenv, "run", s.File, "--admin", "off")
			decided := map[string]int{}
			for range 2 {
				for i := range programtest.Distinct {
					request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+env["LISTEN"]+"/orders", strings.NewReader(programtest.EventText(i)))
					if err != nil {
						t.Fatal(err)
					}
					request.Header.Set("Message-Id", fmt.Sprint("m", i))
					answer, err := http.DefaultClient.Do(request)
					if err != nil {
						t.Fatal(err, stop())
					}
					answer.Body.Close()
					decided[fmt.Sprint(answer.StatusCode, answer.Header.Get("Semel-Decision"))]++
				}
			}
			ended := stop()
			ended.Check(t, term.ExitDone, "running")
			if decided["200fresh"] != programtest.Distinct || decided["200duplicate"] != programtest.Distinct {
				t.Errorf("%v\n%s", decided, ended.Stderr)
			}
			got, want := seen.bodies(), everyText()
			if name == "http-to-postgres" {
				got, want = s.Query("SELECT id FROM orders"), programtest.EveryEvent("o")
			}
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// TestScenariosOfProvidersStoreVerifiedEvents sends events as Stripe and GitHub do: each twice,
// and one that is signed with another secret.
func TestScenariosOfProvidersStoreVerifiedEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		sign func(request *http.Request, secret, id, body string)
	}{
		"stripe": {"SELECT id FROM stripe_events", func(request *http.Request, secret, _, body string) {
			now := time.Now().Unix()
			request.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", now, hmacOf(secret, fmt.Sprintf("%d.%s", now, body))))
		}},
		"github": {"SELECT id FROM github_events", func(request *http.Request, secret, id, body string) {
			request.Header.Set("X-GitHub-Delivery", id)
			request.Header.Set("X-GitHub-Event", "push")
			request.Header.Set("X-Hub-Signature-256", "sha256="+hmacOf(secret, body))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"LISTEN": servicestest.FreeAddr(t), "DATABASE_URL": programtest.Servers.Database(t)}
			for _, variable := range []string{"STRIPE_SECRET", "GITHUB_SECRET"} {
				env[variable] = secrets(variable)
			}
			s := programtest.OpenScenario(t, name, env)
			stop := programtest.BackgroundIn(t, s.Getenv, "run", s.File, "--admin", "off")
			decided := map[string]int{}
			send := func(id, secret string, round int) {
				body := fmt.Sprintf(`{"id":%q,"type":"charge.succeeded"}`, id)
				if name == "stripe" { // its attempts differ, and a user must not think that the key is wrong
					body = fmt.Sprintf(`{"id":%q,"type":"charge.succeeded","pending_webhooks":%d}`, id, 2-round)
				}
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+env["LISTEN"]+"/"+name, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				c.sign(request, secret, id, body)
				answer, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Fatal(err, stop())
				}
				answer.Body.Close()
				decided[fmt.Sprint(answer.StatusCode, answer.Header.Get("Semel-Decision"))]++
			}
			secret := env[strings.ToUpper(name)+"_SECRET"]
			for round := range 2 {
				for i := range programtest.Distinct {
					send(fmt.Sprint("forged", i), "another secret", round)
					send(fmt.Sprint("o", i), secret, round)
				}
			}
			ended := stop()
			if ended.Check(t, term.ExitDone, "running"); strings.Contains(ended.Stderr, "too coarse") {
				t.Errorf("%s", ended.Stderr)
			}
			if n := programtest.Distinct; decided["200fresh"] != n || decided["200duplicate"] != n || decided["401"] != 2*n {
				t.Errorf("%v\n%s", decided, ended.Stderr)
			}
			want := programtest.EveryEvent("o")
			if got := s.Query(c.sql); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			if keys := strings.Count(s.Semel("keys", "ls", "--config", s.File, "--json").Stdout, "\n"); keys != programtest.Distinct {
				t.Errorf("%d keys: a forged event has one", keys)
			}
		})
	}
}

// TestTheScenarioOfSNSStoresVerifiedMessages confirms a subscription, and sends messages as SNS
// does: each twice, and one that is changed on its way.
func TestTheScenarioOfSNSStoresVerifiedMessages(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	var confirmed atomic.Int32
	amazon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("Action") == "ConfirmSubscription" {
			confirmed.Add(1)
			return
		}
		_ = pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}))
	t.Cleanup(amazon.Close)
	topic := secrets("SNS_TOPIC")
	env := map[string]string{"LISTEN": servicestest.FreeAddr(t), "DATABASE_URL": programtest.Servers.Database(t), "SNS_TOPIC": topic}
	s := programtest.OpenScenario(t, "sns", env)
	const written = `topics: ["${env:SNS_TOPIC}"]`
	text := programtest.ReadFile(t, s.File)
	programtest.WriteFile(t, s.File, strings.Replace(text, written, written+`, hosts: ["`+amazon.URL+`"]`, 1))
	stop := programtest.BackgroundIn(t, s.Getenv, "run", s.File, "--admin", "off")
	send := func(kind, id, message string, names ...string) string {
		members := map[string]string{
			"Type": kind, "MessageId": id, "TopicArn": topic, "Message": message, "Timestamp": now.UTC().Format(time.RFC3339), "Token": "t", "SubscribeURL": amazon.URL + "/?Action=ConfirmSubscription",
			"SignatureVersion": "2", "SigningCertURL": amazon.URL + "/SimpleNotificationService-1.pem",
		}
		var content strings.Builder
		for _, name := range names {
			content.WriteString(name + "\n" + members[name] + "\n")
		}
		sum := sha256.Sum256([]byte(content.String()))
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		members["Signature"] = base64.StdEncoding.EncodeToString(signature)
		if id == "changed" {
			members["Message"] += " "
		}
		body, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.Post("http://"+env["LISTEN"]+"/sns", "text/plain; charset=UTF-8", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err, stop())
		}
		answer.Body.Close()
		return fmt.Sprint(answer.StatusCode, answer.Header.Get("Semel-Decision"))
	}
	notify := func(id string) string {
		return send("Notification", id, `{"order":7}`, "Message", "MessageId", "Timestamp", "TopicArn", "Type")
	}
	got := []string{send("SubscriptionConfirmation", "c", "You have chosen", "Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"), notify("m1"), notify("m1"), notify("changed"), notify("m2")}
	ended := stop()
	if ended.Check(t, term.ExitDone, "the subscription is confirmed: "+topic); !slices.Equal(got, []string{"200", "200fresh", "200duplicate", "401", "200fresh"}) || confirmed.Load() != 1 {
		t.Errorf("%q, confirmed %d times\n%s", got, confirmed.Load(), ended.Stderr)
	}
	if rows := s.Query("SELECT id || ' ' || topic || ' ' || event FROM sns_events"); !slices.Equal(rows, []string{"m1 " + topic + ` {"order": 7}`, "m2 " + topic + ` {"order": 7}`}) {
		t.Errorf("%q", rows)
	}
}

// hmacOf returns the signature of a text.
func hmacOf(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func TestNoScenarioPromisesExactlyOnce(t *testing.T) {
	t.Parallel()
	for _, s := range configcmd.Scenarios() {
		got := programtest.Run(t, "", "init", "--scenario", s[0])
		if text := strings.ToLower(got.Stdout); got.Status != term.ExitDone || strings.Contains(strings.ReplaceAll(text, "-", " "), "exactly once") {
			t.Errorf("%s: %+v", s[0], got)
		}
	}
}

func TestQuickstartRunsAsPrinted(t *testing.T) {
	t.Parallel()
	s := programtest.OpenScenario(t, "quickstart", nil)
	programtest.WriteFile(t, filepath.Join(filepath.Dir(s.File), "events.jsonl"), strings.Join(append(everyText(), everyText()...), "\n")+"\n")
	for range 2 {
		s.Semel("run", s.File, "--admin", "off")
		if got := programtest.ReadFile(t, filepath.Join(filepath.Dir(s.File), "clean.jsonl")); got != strings.Join(everyText(), "\n")+"\n" {
			t.Errorf("%s", got)
		}
	}
}

// sortedLines returns the lines of a text, sorted.
func sortedLines(text string) []string {
	list := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(list)
	return list
}
