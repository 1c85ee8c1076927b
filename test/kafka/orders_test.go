package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// customers sends orders until each has its answer.
type customers struct {
	*meter  // of orders that have their answers
	url     string
	begun   atomic.Int64 // orders
	asked   atomic.Int64 // requests
	client  *http.Client
	refused atomic.Int64 // requests without the answer
}

// orderOf is the body of a request. Its service and all behind it pass it on.
func orderOf(i int) string {
	return fmt.Sprintf(`{"order_id":"o%d","amount":"%d.50"}`, i, i%1000)
}

// run sends orders as long as the meter says so.
func (c *customers) run(ctx context.Context) error {
	for c.short() {
		i := int(c.begun.Add(1))
		again := i%5 == 0 // it repeats a request that was answered
		for {
			answer, err := c.send(ctx, i)
			if err != nil && ctx.Err() != nil {
				return err
			}
			if err == nil && answer == fmt.Sprintf("order o%d\n", i) {
				if !again {
					break
				}
				again = false
				continue
			}
			c.refused.Add(1)
			within(20*time.Millisecond, func() bool { return false })
		}
		c.add(1, func() {})
	}
	return nil
}

// send sends a request, and returns the text of an order that is created.
func (c *customers) send(ctx context.Context, i int) (string, error) {
	c.asked.Add(1)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(orderOf(i)))
	if err != nil {
		return "", err
	}
	r.GetBody = nil // the client must not repeat requests by itself
	r.Header.Set("X-Customer", "alice")
	r.Header.Set("Idempotency-Key", fmt.Sprint("k-", i))
	answer, err := c.client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return string(text), err
}

// partnerConfig is the configuration of docs/guides/one-key.md.
const partnerConfig = `
stores:
  keys: { embedded: { path: ./partner-keys } }
pipelines:
  orders:
    source: { http: { listen: %q, path: /inbox } }
    key: { id: "header:Idempotency-Key" }
    window: 8d
    store: keys
    sink: { file: { path: partner.jsonl } }
`

// openShops writes the scenario order-service for two processes. It shortens the times
// after which another process takes over, and those between attempts.
func openShops(t *testing.T, program, name string, env []string) (shops [2]*daemon) {
	t.Helper()
	for i := range shops {
		shops[i] = newDaemon(t, program, "")
		shops[i].env = env
		must(t, os.Remove(shops[i].config))
		shops[i].do(t, "init", "order-service", "--quiet", "--output", shops[i].config)
		text, err := os.ReadFile(shops[i].config)
		must(t, err)
		member := func(group string) []string {
			return []string{"group: " + group + "\n", fmt.Sprintf("group: %s-%s\n        instance: %s-%d\n        session_timeout: 1s\n", name, group, group, i)}
		}
		changes := slices.Concat([]string{
			"topic: orders\n", "topic: " + name + "\n", "topics: [orders]", "topics: [" + name + "]",
			"source: { outbox: { store: db } }\n", "source: { outbox: { store: db } }\n    lease: " + relayLease + "\n",
			"lease: 30s ", "lease: " + relayLease + " ", "backoff: 30s", "backoff: 200ms", "attempts: 8", "attempts: 1000",
		}, member("shipping"), member("notify"))
		for n := 0; n < len(changes); n += 2 {
			if !strings.Contains(string(text), changes[n]) {
				t.Fatalf("the scenario lacks %q", changes[n])
			}
		}
		must(t, os.WriteFile(shops[i].config, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600))
	}
	return shops
}

// TestEachOrderHasOneEffectAtTheEndOfTheChain runs the scenario order-service. Clients
// repeat their requests until they are answered, while the service, both processes of the
// pipelines, the partner, PostgreSQL and Kafka are killed, stopped and restarted. No table
// has a constraint that would refuse a second row.
func TestEachOrderHasOneEffectAtTheEndOfTheChain(t *testing.T) {
	t.Parallel()
	_, random := chooseSeed(t)
	const killService, killPartner = "kill-service", "kill-partner"
	total := 20_000
	events := slices.Concat(slices.Repeat([]string{killRelay, stopRelay, killService, killPartner}, 5), []string{fast, fast, immediate, immediate, immediate, "stop-broker", "kill-broker"})
	if testing.Short() {
		total, events = 400, []string{killRelay, killService, killPartner, []string{fast, immediate}[random.IntN(2)]}
	}
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	began := time.Now()
	addr, name := servers.Kafka(t), servicestest.Topic()
	var broker *services.Server // with -short, no event ends it
	if !testing.Short() {
		broker = servicestest.StartKafka(t, nil)
		addr = broker.Addr()
	}
	database := servicestest.StartPostgres(t, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	must(t, err)
	defer client.Close()
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopic(t.Context(), 4, 1, nil, name)
	must(t, err)
	pool, err := pgxpool.New(t.Context(), database.URL())
	must(t, err)
	defer pool.Close()

	program := built(t)
	here, there := servicestest.FreeAddr(t), servicestest.FreeAddr(t)
	env := []string{"DATABASE_URL=" + database.URL(), "KAFKA_BROKERS=" + addr, "API_URL=http://" + there + "/inbox"}
	shops := openShops(t, program, name, env)
	shops[0].do(t, "migrate", "up", "--config", shops[0].config, "-q")
	text, err := os.ReadFile(shops[0].config)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if _, table, ok := strings.Cut(line, "# The target: "); ok {
			_, err := pool.Exec(t.Context(), strings.ReplaceAll(table, " PRIMARY KEY", ""))
			must(t, err)
		}
	}
	service, partner := newDaemon(t, builtFrom(t, "examples/order-service"), ""), newDaemon(t, program, fmt.Sprintf(partnerConfig, there))
	service.args, service.env = []string{"-listen", here}, env
	programs := []*daemon{service, shops[0], shops[1], partner}
	for _, d := range programs {
		d.supervised = true // it may find no server when it starts
		d.start(t)
	}

	c := &customers{meter: newMeter(), url: "http://" + here + "/orders", client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 10 * time.Second}}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if err := c.run(t.Context()); err != nil {
				t.Errorf("a customer: %v", err)
				c.fail()
			}
		})
	}
	share := total / (len(events) + 1)
	for _, event := range events {
		c.more(share, random.IntN(share), false)
		i := random.IntN(2)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), event, i)
		switch event {
		case killRelay, stopRelay:
			modes[0].upset(t, event, shops, i, pool)
		case killService:
			service.end(t, syscall.SIGKILL)
			service.start(t)
		case killPartner:
			partner.end(t, syscall.SIGKILL)
			partner.start(t)
		default:
			upset(t, event, broker, database)
		}
	}
	c.more(total-share*len(events), 0, true)
	all.Wait()
	becomes(t, pool, "SELECT NOT EXISTS (SELECT FROM semel_outbox)")
	if !within(settleFor, func() bool {
		return isSettled(t.Context(), adm, name+"-shipping", name) && isSettled(t.Context(), adm, name+"-notify", name)
	}) {
		t.Error("shipping and notify did not commit all of the topic")
	}
	for _, d := range programs {
		d.end(t, syscall.SIGTERM)
	}

	var want []string
	for i := range int(c.begun.Load()) {
		want = append(want, orderOf(i+1))
	}
	eachOnce(t, "orders", want, bodies(t, pool, "SELECT id, amount FROM orders"))
	eachOnce(t, "shipments", want, bodies(t, pool, "SELECT order_id, amount FROM shipments"))
	file, err := os.ReadFile(filepath.Join(filepath.Dir(partner.config), "partner.jsonl"))
	must(t, err)
	eachOnce(t, "orders at the partner", want, strings.Split(strings.TrimSuffix(string(file), "\n"), "\n"))
	first, repeats := map[string]string{}, 0
	for _, r := range wholeTopic(t, addr, name, adm) {
		id, body := header(r, "semel-key"), string(r.Value)
		if was, again := first[id]; again && was != body {
			t.Errorf("%s was %s at first, and is %s when it is repeated", id, was, body)
		} else if again {
			repeats++
		}
		first[id] = body
	}
	var sent []string
	for _, body := range first {
		sent = append(sent, body)
	}
	eachOnce(t, "events", want, sent)
	var parked int
	must(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM semel_parked").Scan(&parked))
	if parked > 0 {
		t.Errorf("%d messages were parked", parked)
	}
	t.Logf("%d orders, %d requests, %d of them without the answer; %d repeats in the topic; in %v: %v", len(want), c.asked.Load(), c.refused.Load(), repeats, time.Since(began).Round(time.Second), events)
}

// bodies returns rows as requests have them.
func bodies(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	must(t, err)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var o struct {
			ID     string `json:"order_id"`
			Amount string `json:"amount"`
		}
		if err := row.Scan(&o.ID, &o.Amount); err != nil {
			return "", err
		}
		text, err := json.Marshal(o)
		return string(text), err
	})
	must(t, err)
	return list
}

// eachOnce checks that each text is there exactly once, and nothing else.
func eachOnce(t *testing.T, what string, want, got []string) {
	t.Helper()
	count := map[string]int{}
	for _, text := range got {
		count[text]++
	}
	wrong := 0
	for _, text := range want {
		if count[text] != 1 {
			if wrong++; wrong < 10 {
				t.Errorf("%s: %s is there %d times", what, text, count[text])
			}
		}
		delete(count, text)
	}
	if wrong > 0 || len(count) > 0 {
		t.Errorf("%s: %d of %d are not there once, and %d are foreign", what, wrong, len(want), len(count))
	}
}
