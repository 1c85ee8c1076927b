package examples_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestWebhookReceiverStoresEachEventOnce(t *testing.T) {
	t.Parallel()
	database := servers.Database(t)
	env := []string{"DATABASE_URL=" + database, "WEBHOOK_SECRET=whsec_test"}
	sign := func(secret, body string, at time.Time) string {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%d.%s", at.Unix(), body)
		return fmt.Sprintf("t=%d,v1=00,v1=%s", at.Unix(), hex.EncodeToString(mac.Sum(nil)))
	}
	now := time.Now()
	const event = `{"id":"evt_1","type":"charge.succeeded","amount":4990}`

	receiver := start(t, env, "webhook-receiver", "-listen", "127.0.0.1:0")
	url := "http://" + receiver.await("listening on ") + "/webhooks"
	for _, step := range []struct{ about, body, signature, want string }{
		{"the first delivery", event, sign("whsec_test", event, now), "200"},
		{"the same again", event, sign("whsec_test", event, now.Add(time.Second)), "200"},
		{"without a signature", event, "", "401"},
		{"another secret", event, sign("other", event, now), "401"},
		{"another body", `{"id":"evt_9"}`, sign("whsec_test", event, now), "401"},
		{"a recorded request", event, sign("whsec_test", event, now.Add(-time.Hour)), "401"},
		{"without an id", `{}`, sign("whsec_test", `{}`, now), "400"},
	} {
		if got := post(t, url, step.body, "Stripe-Signature", step.signature); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s: %s, want %s", step.about, got, step.want)
		}
	}

	// The table is locked while the next event is stored, and the process dies.
	conn := connect(t, database)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE webhook_events"); err != nil {
		t.Fatal(err)
	}
	const next = `{"id":"evt_2","type":"charge.refunded"}`
	status, answered := 0, make(chan struct{})
	go func() {
		defer close(answered)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(next))
		if err == nil {
			request.Header.Set("Stripe-Signature", sign("whsec_test", next, now))
			if response, err := http.DefaultClient.Do(request); err == nil {
				response.Body.Close()
				status = response.StatusCode
			}
		}
	}()
	awaitLock(t, database, answered)
	receiver.kill()
	if <-answered; status == http.StatusOK {
		t.Error("the sender got 200 for an event that is not stored")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	receiver = start(t, env, "webhook-receiver", "-listen", "127.0.0.1:0")
	url = "http://" + receiver.await("listening on ") + "/webhooks"
	for range 2 {
		if got := post(t, url, next, "Stripe-Signature", sign("whsec_test", next, now)); got != "200" {
			t.Errorf("after the kill: %s", got)
		}
	}
	// An event that cannot be stored now is one that the sender repeats.
	if _, err := conn.Exec(t.Context(), "ALTER TABLE webhook_events RENAME TO away"); err != nil {
		t.Fatal(err)
	}
	const third = `{"id":"evt_3"}`
	if got := post(t, url, third, "Stripe-Signature", sign("whsec_test", third, now)); !strings.HasPrefix(got, "500") {
		t.Errorf("without its table: %s", got)
	}
	if _, err := conn.Exec(t.Context(), "ALTER TABLE away RENAME TO webhook_events"); err != nil {
		t.Fatal(err)
	}
	if got := post(t, url, third, "Stripe-Signature", sign("whsec_test", third, now)); got != "200" {
		t.Errorf("with its table again: %s", got)
	}
	receiver.stop()
	if got := rows(t, conn, "SELECT id FROM webhook_events ORDER BY id"); got != "[evt_1 evt_2 evt_3]" {
		t.Errorf("the table has %s", got)
	}
}
