package suite

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
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// costBytes is the length of a message.
	costBytes = 256
	// costEvery: one message in this many repeats one of the costNear before it.
	costEvery, costNear = 10, 1000
	// costCustomers is the number of customers.
	costCustomers = 10_000
	// costSpan is the time between the first record and the last one.
	costSpan = 10 * time.Minute
	// costSecret signs requests.
	costSecret = "whsec_c29tZSBieXRlcyBvZiBhIHNlY3JldA"
	snsTopic   = "arn:aws:sns:eu-west-1:123456789012:orders"
)

// costMessages are the messages of a scenario.
type costMessages struct {
	*scenario
	key    *rsa.PrivateKey
	amazon *httptest.Server
	signed map[int][]byte // by number, for signatures that take long
}

func newCostMessages(s *scenario) *costMessages { return &costMessages{scenario: s} }

// source returns the number of the message that message i repeats, or i.
func (m *costMessages) source(i int) int {
	if i%costEvery != costEvery-1 {
		return i
	}
	at := i - 1 - (i*7919)%min(i, costNear)
	if at%costEvery == costEvery-1 {
		at--
	}
	return at
}

// distinct returns how many of n messages repeat none.
func (m *costMessages) distinct(n int) int { return n - n/costEvery }

// text returns the id and the text of message i. A duplicate has the same text.
func (m *costMessages) text(i int) (id, text []byte) {
	i = m.source(i)
	id = append(grownID(nil, i), grownID(nil, ^i)...)
	text = fmt.Appendf(make([]byte, 0, costBytes), `{"%s":"%s",`, m.id, id)
	if m.id != "order_id" {
		text = fmt.Appendf(text, `"order_id":"o%d",`, i)
	}
	text = fmt.Appendf(text, `"customer":"c%d","customer_id":"c%[1]d","tenant":"t%d","type":"order.paid","status":"paid","amount":"12.50","cents":1250,"version":1,"note":"`, m.customer(i), i%10)
	for len(text) < costBytes-2 {
		text = append(text, 'a'+byte(i+len(text)*7)%26)
	}
	return id, append(text, `"}`...)
}

func (m *costMessages) customer(i int) int { return i * 31 % costCustomers }

// environment returns further variables of a scenario.
func (m *costMessages) environment() (env []string, err error) {
	env = []string{"STRIPE_SECRET=" + costSecret, "GITHUB_SECRET=" + costSecret, "SNS_TOPIC=" + snsTopic}
	if m.name != "sns" {
		return env, nil
	}
	if m.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &m.key.PublicKey, m.key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	m.amazon = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(certificate) })) // the source sees a broken answer
	return append(env, "SNS_HOST="+m.amazon.URL), m.signAll()
}

func (m *costMessages) close() error {
	if m.amazon != nil {
		m.amazon.Close()
	}
	return nil
}

// prefill writes the messages to where the program reads them.
func (c *costRun) prefill(ctx context.Context) error {
	switch c.from {
	case "kafka":
		if c.name == "join" {
			if err := c.fillCustomers(ctx); err != nil {
				return err
			}
		}
		return c.fillTopic(ctx)
	case "outbox":
		return c.fillOutbox(ctx)
	case "http", "file":
		return nil
	}
	batch := 500
	if c.from == "sqs" {
		batch = 10
	}
	return inParallel(publishers, publishers, func(worker int) error {
		publish, err := c.broker.plain(ctx)
		if err != nil {
			return err
		}
		for from := worker * batch; from < c.messages; from += publishers * batch {
			bodies := make([][]byte, min(batch, c.messages-from))
			for i := range bodies {
				_, bodies[i] = c.data.text(from + i)
			}
			if err := publish(ctx, bodies); err != nil {
				return err
			}
		}
		return nil
	})
}

// produce writes n records.
func (c *costRun) produce(ctx context.Context, n int, record func(i int) *kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.kafka.addrs...), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	for i := 0; i < n && failed.Load() == nil; i++ {
		client.Produce(ctx, record(i), func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *costRun) fillTopic(ctx context.Context) error {
	base := time.Now().Add(-time.Hour)
	return c.produce(ctx, c.messages, func(i int) *kgo.Record {
		id, text := c.data.text(i)
		if c.by == "customer" {
			id = fmt.Append(nil, "c", c.data.customer(c.data.source(i)))
		}
		return &kgo.Record{Topic: c.in, Key: id, Value: text, Timestamp: base.Add(costSpan * time.Duration(i) / time.Duration(c.messages))}
	})
}

// fillCustomers writes the rows of the join.
func (c *costRun) fillCustomers(ctx context.Context) error {
	made, err := c.kafka.client.CreateTopics(ctx, kafkaPartitions, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "customers")
	if err := errors.Join(err, made.Error()); err != nil {
		return err
	}
	return c.produce(ctx, costCustomers, func(i int) *kgo.Record {
		return &kgo.Record{Topic: "customers", Key: fmt.Append(nil, "c", i), Value: fmt.Appendf(nil, `{"active":true,"tier":"t%d"}`, i%3)}
	})
}

// fillOutbox writes the messages as the service of the scenario does. They have no
// duplicates, because the service has none.
func (c *costRun) fillOutbox(ctx context.Context) error {
	i := 0
	_, err := c.db.CopyFrom(ctx, pgx.Identifier{"semel_outbox"}, []string{"aggregate", "topic", "payload"}, pgx.CopyFromFunc(func() ([]any, error) {
		if i == c.messages {
			return nil, nil
		}
		text := fmt.Appendf(make([]byte, 0, costBytes), `{"order_id":"o%d","amount":"12.50","note":"`, i)
		text = append(text, bytes.Repeat([]byte("x"), costBytes-2-len(text))...)
		i++
		return []any{fmt.Sprint("c", c.data.customer(i)), c.in, append(text, `"}`...)}, nil
	}))
	return err
}

// listens waits until the program accepts connections.
func (c *costRun) listens(r *running) error {
	for late := time.Now().Add(10 * time.Second); ; {
		conn, err := net.Dial("tcp", c.listen)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(late) {
			return err
		}
		select {
		case <-r.ended:
			return errors.New("the program has ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// request sends the messages from a number to another, and has each answered with 200.
func (c *costRun) request(from, to int) error {
	var wrong error
	load := &httpLoad{address: c.listen, conns: min(to-from, httpConns), requests: to - from, check: func([]byte) error { return nil }}
	load.request = func(buf []byte, i int) []byte {
		i += from
		id, body := c.data.text(i)
		head := "Message-Id: " + string(id) + "\r\n"
		if c.sign != nil {
			var err error
			if head, body, err = c.sign(c.data, i, body); err != nil {
				wrong = err
			}
		}
		buf = fmt.Appendf(buf[:0], "POST %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: %d\r\n\r\n", c.in, c.listen, head, len(body))
		return append(buf, body...)
	}
	_, _, err := load.run()
	return errors.Join(wrong, err)
}

func costHMAC(text []byte) string {
	mac := hmac.New(sha256.New, []byte(costSecret))
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

func signStripe(_ *costMessages, _ int, body []byte) (string, []byte, error) {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	return "Content-Type: application/json\r\nStripe-Signature: t=" + now + ",v1=" + costHMAC(append([]byte(now+"."), body...)) + "\r\n", body, nil
}

func signGitHub(m *costMessages, i int, body []byte) (string, []byte, error) {
	id, _ := m.text(i)
	return "Content-Type: application/json\r\nX-GitHub-Event: push\r\nX-GitHub-Delivery: " + string(id) + "\r\nX-Hub-Signature-256: sha256=" + costHMAC(body) + "\r\n", body, nil
}

// signSNS returns a message that was signed before.
func signSNS(m *costMessages, i int, _ []byte) (string, []byte, error) {
	return "Content-Type: text/plain; charset=UTF-8\r\n", m.signed[m.source(i)], nil
}

// signAll signs all messages of Amazon SNS, which takes a millisecond each.
func (m *costMessages) signAll() error {
	list := make([][]byte, m.messages)
	now := time.Now().UTC().Format(time.RFC3339)
	err := inParallel(runtime.NumCPU(), m.messages, func(i int) error {
		if m.source(i) != i {
			return nil
		}
		id, text := m.text(i)
		members := map[string]string{
			"Type": "Notification", "MessageId": string(id), "TopicArn": snsTopic, "Message": string(text), "Timestamp": now,
			"SignatureVersion": "2", "SigningCertURL": m.amazon.URL + "/SimpleNotificationService-1.pem",
		}
		var content strings.Builder
		for _, name := range []string{"Message", "MessageId", "Timestamp", "TopicArn", "Type"} {
			content.WriteString(name + "\n" + members[name] + "\n")
		}
		sum := sha256.Sum256([]byte(content.String()))
		signature, err := rsa.SignPKCS1v15(rand.Reader, m.key, crypto.SHA256, sum[:])
		if err != nil {
			return err
		}
		members["Signature"] = base64.StdEncoding.EncodeToString(signature)
		list[i], err = json.Marshal(members)
		return err
	})
	m.signed = map[int][]byte{}
	for i, body := range list {
		if body != nil {
			m.signed[i] = body
		}
	}
	return err
}
