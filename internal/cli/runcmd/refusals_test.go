package runcmd_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// refusal is something that a server refuses until a person permits it there.
type refusal struct {
	name           string
	ends           string // source, sink and more of the pipeline orders
	refuse, permit func(t *testing.T)
	words          []string           // cause and remedy, in the log and for a probe
	message        func(t *testing.T) // asks for the refused action; nil if a line of the input or nothing does
}

// TestRunWaitsWhileAServerRefusesItsRequests starts a pipeline that its server refuses. The
// log and the probe name cause and remedy. The pipeline works when it is permitted, and
// waits again when it is refused later. The other pipeline of the file works throughout.
func TestRunWaitsWhileAServerRefusesItsRequests(t *testing.T) {
	programtest.SetAWS(t, nil)
	for _, r := range refusals(t) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n")
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { own: { embedded: { path: keys } }, more: { embedded: { path: others } } }
pipelines:
  orders: { key: { id: .id }, %s }
  other:  { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: more, sink: { file: { path: copied.jsonl } }, parked: { path: parked-other } }
`, r.ends))
			lines := 1
			message := func() { // a sink is asked for something
				lines++
				programtest.AppendFile(t, filepath.Join(dir, "in.jsonl"), fmt.Sprintf("{\"id\":\"%d\"}\n", lines))
				if r.message != nil {
					r.message(t)
				}
			}
			r.refuse(t)
			running := programtest.StartRun(t, file)
			running.Line(append([]string{"level=WARN", "pipeline=orders"}, r.words...)...)
			for range 2 {
				running.Probe(http.StatusServiceUnavailable, append([]string{"orders: not ready: ", "other: ready"}, r.words...)...)
				r.permit(t)
				running.Probe(http.StatusOK, "orders: ready", "other: ready")
				r.refuse(t)
				// A server may use a right for a moment after it has confirmed its end.
				for late := time.Now().Add(time.Minute); time.Now().Before(late); <-time.After(time.Second) {
					message()
					if status, text := running.Readyz(); status == http.StatusServiceUnavailable && programtest.ContainsAll(text, r.words) {
						break
					}
				}
			}
			running.Probe(http.StatusServiceUnavailable, append([]string{"other: ready"}, r.words...)...)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			copied := func() int { return strings.Count(programtest.ReadFile(t, filepath.Join(dir, "copied.jsonl")), "\n") }
			for late := time.Now().Add(programtest.TroubleWithin); copied() < lines && time.Now().Before(late); <-tick.C {
			}
			if n := copied(); n != lines {
				t.Errorf("the other pipeline wrote %d of %d lines", n, lines)
			}
			running.Stop() // the drain does not wait for the server
		})
	}
}

const (
	fromLines = "source: { file: { paths: [in.jsonl], follow: true } }, store: own, parked: { path: parked }"
	toLines   = "sink: { file: { path: out.jsonl } }, store: own, parked: { path: parked }"
)

func refusals(t *testing.T) []refusal {
	return append(append(natsRefusals(t), rabbitRefusals(t)...), append(kafkaRefusals(t), sqsRefusals(t)...)...)
}

// natsRefusals start a server with the user app, which its configuration lets in or not.
func natsRefusals(t *testing.T) (list []refusal) {
	for _, end := range []string{"source", "sink"} {
		const accounts = "authorization { users: [ { user: root, password: root }, { user: app, password: %s } ] }"
		server := servicestest.StartNATS(t, &services.NATSOptions{Config: fmt.Sprintf(accounts, "s3cret")})
		conf := filepath.Join(server.Dir(), "nats.conf")
		text := programtest.ReadFile(t, conf)
		set := func(password string) func(t *testing.T) {
			return func(t *testing.T) {
				programtest.WriteFile(t, conf, strings.Replace(text, "password: s3cret", "password: "+password, 1))
				if err := syscall.Kill(server.PID(), syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
			}
		}
		js := programtest.ConnectJetStream(t, "nats://root:root@"+server.Addr())
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatal(err)
		}
		ends := fromLines + fmt.Sprintf(", sink: { nats: { servers: [%q], username: app, password: s3cret, subject: s } }", server.Addr())
		if end == "source" {
			ends = toLines + fmt.Sprintf(", source: { nats: { servers: [%q], username: app, password: s3cret, stream: S, consumer: c, create: true } }", server.Addr())
		}
		list = append(list, refusal{
			name: "NATS password, " + end, ends: ends, refuse: set("wrong"), permit: set("s3cret"),
			words: []string{"the servers refuse these credentials: correct " + end + ".nats.credentials, or username and password"},
		})
	}
	return list
}

// rabbitRefusals start a server and change passwords, permissions and virtual hosts with
// its HTTP API.
func rabbitRefusals(t *testing.T) (list []refusal) {
	management := servicestest.FreeAddr(t)
	server := servicestest.StartRabbitMQ(t, &services.RabbitMQOptions{Management: management})
	api := func(t *testing.T, method, path, body string) {
		t.Helper()
		for late := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://guest:guest@"+management+"/api/"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			switch {
			case answer.StatusCode/100 == 2 || answer.StatusCode == http.StatusNotFound:
				return
			case answer.StatusCode != http.StatusInternalServerError || time.Now().After(late): // as of a connection that just ends
				t.Fatal(answer.Status, string(text))
			}
		}
	}
	for _, end := range []string{"source", "sink"} {
		for _, what := range []string{"password", "right", "virtual host"} {
			user := strings.ReplaceAll(what, " ", "") + end
			host := user
			all := func(t *testing.T) {
				api(t, http.MethodPut, "vhosts/"+host, "")
				api(t, http.MethodPut, "users/"+user, `{"password":"s3cret","tags":""}`)
				api(t, http.MethodPut, "permissions/"+host+"/"+user, `{"configure":".*","write":".*","read":".*"}`)
				api(t, http.MethodPut, "permissions/"+host+"/guest", `{"configure":".*","write":".*","read":".*"}`)
				programtest.DeclareQueue(t, programtest.RabbitChannel(t, "amqp://guest:guest@"+server.Addr()+"/"+host), "q", amqp.QueueTypeQuorum, nil)
			}
			all(t)
			r := refusal{name: "RabbitMQ " + what + ", " + end, permit: all}
			disconnect := func(t *testing.T) { api(t, http.MethodDelete, "connections/username/"+user, "") }
			switch what {
			case "password":
				r.refuse = func(t *testing.T) {
					api(t, http.MethodPut, "users/"+user, `{"password":"wrong","tags":""}`)
					disconnect(t)
				}
				r.words = []string{"the servers refuse this user and password: correct " + end + ".rabbitmq.username and password"}
				r.message = disconnect // also a connection that the server did not list yet
			case "right":
				r.refuse = func(t *testing.T) {
					api(t, http.MethodPut, "permissions/"+host+"/"+user, `{"configure":"","write":"","read":""}`)
					disconnect(t)
				}
				r.words = []string{"ACCESS_REFUSED", "grant the user this right with rabbitmqctl set_permissions"}
				r.message = disconnect
			default:
				r.refuse = func(t *testing.T) { api(t, http.MethodDelete, "vhosts/"+host, "") }
				r.words = []string{"the user may not use the virtual host " + host + ", or there is none: create it with rabbitmqctl add_vhost " + host}
			}
			at := fmt.Sprintf("servers: [%q], username: %s, password: s3cret, vhost: %s", server.Addr(), user, host)
			if r.ends = fromLines + fmt.Sprintf(", sink: { rabbitmq: { %s, routing_key: q } }", at); end == "source" {
				r.ends = toLines + fmt.Sprintf(", source: { rabbitmq: { %s, queue: q } }", at)
			}
			list = append(list, r)
		}
	}
	return list
}

// cutListener closes the connections of a server.
type cutListener struct {
	net.Listener
	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// Accept implements net.Listener.
func (l *cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, conn)
		l.mu.Unlock()
	}
	return conn, err
}

func (l *cutListener) disconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

// kafkaRefusals start brokers for each refusal, with the user app.
func kafkaRefusals(t *testing.T) (list []refusal) {
	mayNotJoin := []string{"user app may not read in as group g: kafka-acls.sh ", " --add --allow-principal User:app --operation Read --group g; semel doctor checks all rights"}
	mayNotRead := []string{"user app lacks the right Read on topic in: kafka-acls.sh ", " --add --allow-principal User:app --operation Read --topic in; semel doctor checks all rights"}
	for _, c := range []struct {
		name  string
		mode  string // source, sink or transaction
		acl   func(*kadm.ACLBuilder) *kadm.ACLBuilder
		words []string
	}{
		{"password", "source", nil, []string{"password refused for user app: correct source.kafka.sasl"}},
		{"password", "sink", nil, []string{"password refused for user app: correct sink.kafka.sasl"}},
		{"password", "transaction", nil, []string{"password refused for user app: correct source.kafka.sasl"}},
		{"right to the group", "source", func(b *kadm.ACLBuilder) *kadm.ACLBuilder { return b.Groups("g").Operations(kadm.OpRead) }, mayNotJoin},
		{"right to the group", "transaction", func(b *kadm.ACLBuilder) *kadm.ACLBuilder { return b.Groups("g").Operations(kadm.OpRead) }, mayNotJoin},
		{"right to read", "source", func(b *kadm.ACLBuilder) *kadm.ACLBuilder { return b.Topics("in").Operations(kadm.OpRead) }, mayNotRead},
		{"right to read", "transaction", func(b *kadm.ACLBuilder) *kadm.ACLBuilder { return b.Topics("in").Operations(kadm.OpRead) }, mayNotRead},
		{"right to see", "source", func(b *kadm.ACLBuilder) *kadm.ACLBuilder {
			return b.Topics("in").Operations(kadm.OpDescribe, kadm.OpRead)
		}, mayNotRead},
		{"right to the transactional id", "transaction", func(b *kadm.ACLBuilder) *kadm.ACLBuilder {
			return b.TransactionalIDs("g/one-0").Operations(kadm.OpWrite)
		}, []string{"user app may not write transactions with ids of group g: kafka-acls.sh ", " --add --allow-principal User:app --operation Write --transactional-id g/ --resource-pattern-type prefixed; semel doctor checks all rights"}},
		{"right to the changelog", "transaction", func(b *kadm.ACLBuilder) *kadm.ACLBuilder { return b.Topics("g-keys").Operations(kadm.OpRead) }, []string{"user app lacks the right Read or Write on topic g-keys: kafka-acls.sh ", " --add --allow-principal User:app --operation Read --operation Write --topic g-keys; semel doctor checks all rights"}},
	} {
		listener := &cutListener{}
		allow := func(resource kmsg.ACLResourceType, name string) kfake.ACL {
			return kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationAll, Allow: true}
		}
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in", "out"), kfake.EnableSASL(), kfake.EnableACLs(), kfake.GroupMinSessionTimeout(time.Second), kfake.Superuser("SCRAM-SHA-256", "root", "root"),
			kfake.User("SCRAM-SHA-256", "app", "s3cret", allow(kmsg.ACLResourceTypeTopic, "*"), allow(kmsg.ACLResourceTypeGroup, "*"), allow(kmsg.ACLResourceTypeTransactionalId, "*"), allow(kmsg.ACLResourceTypeCluster, "kafka-cluster")),
			kfake.ListenFn(func(network, addr string) (net.Listener, error) {
				l, err := net.Listen(network, addr)
				listener.Listener = l
				return listener, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.SASL(scram.Auth{User: "root", Pass: "root"}.AsSha256Mechanism()), kgo.DefaultProduceTopic("in"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		if err := client.ProduceSync(t.Context(), kgo.StringRecord(`{"id":"1"}`)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		admin := kadm.NewClient(client)
		r := refusal{name: "Kafka " + c.name + ", " + c.mode, words: c.words}
		if c.acl == nil {
			var fault *kfake.FaultHandle // a fake broker only closes the connection
			r.refuse = func(*testing.T) {
				fault = cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SASLAuthenticate}, Err: kerr.SaslAuthenticationFailed, TopLevel: true, Count: -1})
				listener.disconnect()
			}
			r.permit = func(*testing.T) { fault.Remove() }
		} else {
			denied := func() *kadm.ACLBuilder {
				return c.acl(kadm.NewACLs()).ResourcePatternType(kadm.ACLPatternLiteral).Deny("User:app").DenyHosts("*")
			}
			r.refuse = func(t *testing.T) {
				if made, err := admin.CreateACLs(t.Context(), denied()); err != nil || made[0].Err != nil {
					t.Fatal(err, made)
				}
				listener.disconnect() // what a broker has decided for a running fetch session stays
			}
			r.permit = func(t *testing.T) {
				if gone, err := admin.DeleteACLs(t.Context(), denied()); err != nil || gone[0].Err != nil {
					t.Fatal(err, gone)
				}
			}
		}
		if c.name == "right to the transactional id" { // a fake broker checks it only when a producer begins
			refuse, permit := r.refuse, r.permit
			var fault *kfake.FaultHandle
			r.refuse = func(t *testing.T) {
				refuse(t)
				fault = cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.AddOffsetsToTxn, kmsg.EndTxn}, Err: kerr.TransactionalIDAuthorizationFailed, TopLevel: true, Count: -1})
			}
			r.permit = func(t *testing.T) {
				fault.Remove()
				permit(t)
			}
		}
		if c.acl != nil && c.mode == "transaction" { // without a message, no transaction begins
			r.message = func(t *testing.T) {
				if err := client.ProduceSync(t.Context(), kgo.StringRecord(fmt.Sprintf("{\"id\":\"%d\"}", time.Now().UnixNano()))).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		at := fmt.Sprintf("brokers: [%q], sasl: { mechanism: SCRAM-SHA-256, username: app, password: s3cret }", cluster.ListenAddrs()[0])
		source, sink := fmt.Sprintf("source: { kafka: { %s, topics: [in], group: g, instance: one, session_timeout: 1s } }", at), fmt.Sprintf("sink: { kafka: { %s, topic: out } }", at)
		switch c.mode {
		case "source":
			r.ends = toLines + ", " + source
		case "sink":
			r.ends = fromLines + ", " + sink
		default:
			r.ends = source + ", " + sink + ", window: 1d, transaction: { state: state }"
		}
		list = append(list, r)
	}
	return list
}

// sqsRefusals answer the requests for a queue of ElasticMQ with the errors of Amazon.
func sqsRefusals(t *testing.T) (list []refusal) {
	server := programtest.Servers.SQS(t)
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"source", "sink"} {
		for code, words := range map[string][]string{
			"InvalidClientTokenId":                       {"SQS refuses these credentials: are they for this account, and still valid?"},
			"AccessDenied":                               {"these credentials have no permission for the queue ", ": permit sqs:"},
			"QueueDoesNotExist":                          {"there is no queue ", ": create it with aws sqs create-queue --queue-name "},
			"com.amazonaws.sqs#KmsAccessDeniedException": {"SQS may not use the KMS key of the queue ", ": permit kms:GenerateDataKey and kms:Decrypt"},
		} {
			var refused atomic.Bool
			pass := httputil.NewSingleHostReverseProxy(target)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if refused.Load() {
					w.Header().Set("Content-Type", "application/x-amz-json-1.0")
					w.WriteHeader(http.StatusBadRequest)
					_, _ = fmt.Fprintf(w, `{"__type":%q,"message":"refused"}`, code)
					return
				}
				pass.ServeHTTP(w, r)
			}))
			t.Cleanup(front.Close)
			queue := programtest.NewSQSQueue(t, awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: &server, Credentials: aws.AnonymousCredentials{}}), "", nil)
			at := front.URL + queue.URL[strings.Index(queue.URL[8:], "/")+8:]
			r := refusal{
				name: "SQS " + code + ", " + end, words: words,
				refuse: func(*testing.T) { refused.Store(true) }, permit: func(*testing.T) { refused.Store(false) },
			}
			if r.ends = fromLines + fmt.Sprintf(", sink: { sqs: { queue: %q } }", at); end == "source" {
				r.ends = toLines + fmt.Sprintf(", source: { sqs: { queue: %q } }", at)
			}
			list = append(list, r)
		}
	}
	return list
}
