package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sys/unix"

	"github.com/semel-dev/semel/bench/internal/lines"
	"github.com/semel-dev/semel/bench/internal/machine"
	"github.com/semel-dev/semel/bench/internal/result"
	"github.com/semel-dev/semel/test/services"
)

// scenario says how a scenario of semel init is measured.
type scenario struct {
	name string
	// from is the kind of the source: file, kafka, rabbitmq, nats, sqs, http or outbox.
	from     string
	messages int
	// in is the topic, or the path of the requests. out are further topics.
	in  string
	out []string
	// id is the member that has the id.
	id string
	// rows is the table of the rows. toAPI: messages are requests to a service.
	rows  string
	toAPI bool
	// table makes the table of the rows, if the configuration does not say how.
	table string
	// database and redis: keys are there, apart from the effects.
	database, redis bool
	// by is the record key, if it is another member than the id.
	by string
	// sign signs a request.
	sign func(m *costMessages, i int, body []byte) (head string, signed []byte, err error)
	// edits replace text of the configuration, which must be there.
	edits []string
	// plain are the arguments of the sink of peers/plain, and copyEvery the interval of
	// peers/kafkacopy. There is no peer without either.
	plain     []string
	copyEvery time.Duration
}

// costScenarios lists the scenarios of semel init.
func (e *Env) costScenarios() []scenario {
	const orders = "event_id=.event_id,customer=.customer,amount=.amount"
	rows := func(table, columns string) []string {
		return []string{"-to", "postgres", "-table", table, "-columns", columns}
	}
	full := []scenario{
		{name: "quickstart", from: "file", messages: 5_000_000},
		{name: "kafka-to-kafka", from: "kafka", messages: 2_000_000, in: "events", out: []string{"events-clean", "events-parked"}, id: "event_id", copyEvery: 100 * time.Millisecond},
		{name: "kafka-to-postgres", from: "kafka", messages: 500_000, in: "orders", id: "event_id", rows: "orders", plain: rows("orders", orders)},
		{name: "kafka-to-api", from: "kafka", messages: 50_000, in: "charges", id: "event_id", toAPI: true, database: true, redis: true, plain: []string{"-to", "webhook"}},
		{name: "rabbitmq", from: "rabbitmq", messages: 200_000, id: "event_id", rows: "orders", edits: []string{"queue: orders", "queue: " + brokerQueue}, plain: rows("orders", "event_id=.event_id,order_id=.order_id,amount=.amount")},
		{name: "nats", from: "nats", messages: 300_000, id: "event_id", rows: "orders", edits: []string{"stream: ORDERS", "stream: " + brokerQueue}, plain: rows("orders", orders)},
		{name: "sqs", from: "sqs", messages: 10_000, id: "event_id", rows: "orders", plain: rows("orders", orders)},
		{name: "sqs-dlq", from: "sqs", messages: 10_000, id: "event_id", rows: "orders", table: "CREATE TABLE orders (event_id text, customer text, amount numeric, at timestamptz)", plain: rows("orders", orders)},
		{name: "http-to-postgres", from: "http", messages: 50_000, in: "/orders", id: "order_id", rows: "orders", plain: rows("orders", "id=.order_id,customer=.customer,amount=.amount")},
		{name: "stripe", from: "http", messages: 50_000, in: "/stripe", id: "id", rows: "stripe_events", sign: signStripe, plain: rows("stripe_events", "id=.id,type=.type,event=body")},
		{name: "github", from: "http", messages: 50_000, in: "/github", id: "id", rows: "github_events", sign: signGitHub, plain: rows("github_events", "id=header:X-GitHub-Delivery,event=header:X-GitHub-Event,body=body")},
		{name: "sns", from: "http", messages: 10_000, in: "/sns", id: "id", rows: "sns_events", sign: signSNS, edits: []string{`topics: ["${env:SNS_TOPIC}"]`, `topics: ["${env:SNS_TOPIC}"], hosts: ["${env:SNS_HOST}"]`}, plain: rows("sns_events", "id=.MessageId,topic=.TopicArn,event=body")},
		{name: "http-to-api", from: "http", messages: 50_000, in: "/orders", id: "order_id", toAPI: true, plain: []string{"-to", "webhook"}},
		{name: "order-service", from: "outbox", messages: 50_000, in: "orders", id: "order_id", rows: "shipments", toAPI: true},
		{name: "analytics", from: "kafka", messages: 1_000_000, in: "clicks", id: "event_id", plain: []string{"-to", "file"}},
		{name: "financial", from: "kafka", messages: 300_000, in: "payments", id: "payment_id", rows: "payments"},
		{name: "filter", from: "kafka", messages: 1_000_000, in: "orders", out: []string{"orders-clean", "orders-parked"}, id: "event_id"},
		{name: "windows", from: "kafka", messages: 1_000_000, in: "sales", out: []string{"sales-by-minute", "sales-parked"}, id: "order_id", by: "customer"},
		{name: "latest", from: "kafka", messages: 1_000_000, in: "statuses", out: []string{"latest-statuses", "statuses-parked"}, id: "order_id"},
		{name: "join", from: "kafka", messages: 1_000_000, in: "invoices", out: []string{"invoices-by-tier", "invoices-parked"}, id: "invoice_id"},
		{name: "streams", from: "kafka", messages: 2_000_000, in: "clicks", out: []string{"clicks-clean", "clicks-parked"}, id: "event_id", copyEvery: time.Second},
	}
	for i := range full {
		full[i].messages = e.size(full[i].messages, 2000)
	}
	return full
}

// Costs measures scenarios of semel init by their names, or all of them.
func (r *Runner) Costs(ctx context.Context, names []string) error {
	e := &r.Env
	for _, step := range []func(context.Context) error{e.prepareKafka(e.buildSemel), e.build("plain"), e.build("kafkacopy")} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	known := e.costScenarios()
	if err := e.allScenarios(ctx, known); err != nil {
		return err
	}
	described, err := machine.Describe()
	if err != nil {
		return err
	}
	chosen := known
	if len(names) > 0 {
		chosen = nil
		for _, name := range names {
			at := len(chosen)
			for _, s := range known {
				if s.name == name {
					chosen = append(chosen, s)
				}
			}
			if len(chosen) == at {
				return fmt.Errorf("suite: there is no scenario %q: see semel init", name)
			}
		}
	}
	var failed []error
	for _, s := range chosen {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(failed, err)...)
		}
		began := time.Now()
		if err := r.cost(ctx, &s, described); err != nil {
			err = fmt.Errorf("suite: %s: %w", s.name, err)
			fmt.Fprintln(r.Log, "FAILED", err)
			failed = append(failed, err)
			continue
		}
		fmt.Fprintf(r.Log, "%s: took %.0f s\n", s.name, time.Since(began).Seconds())
	}
	return errors.Join(failed...)
}

// allScenarios returns an error unless each scenario of the program is measured.
func (e *Env) allScenarios(ctx context.Context, known []scenario) error {
	text, err := exec.CommandContext(ctx, e.work("bin", "semel"), "init", "--json").Output()
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, s := range known {
		names[s.name] = true
	}
	for line := range strings.Lines(string(text)) {
		var of struct{ Scenario string }
		if err := json.Unmarshal([]byte(line), &of); err != nil {
			return err
		}
		if !names[of.Scenario] {
			return fmt.Errorf("suite: the cost of the scenario %s is not measured", of.Scenario)
		}
	}
	return nil
}

// cost measures a scenario, and its peer if there is one.
func (r *Runner) cost(ctx context.Context, s *scenario, described string) error {
	res := result.Cost{Scenario: s.name, Messages: s.messages, Measured: result.Measured{
		Work:    fmt.Sprintf("%s messages of about %d bytes, every tenth a duplicate, from the first effect to the last one. Network is what passes the loopback interface, disk what the device of the working directory writes", count(s.messages), costBytes),
		Command: r.Env.commandOf("cost", s.name), Machine: described,
	}}
	switch s.from {
	case "file":
		res.Work = fmt.Sprintf("%s lines of about 200 bytes, a fifth of them duplicates, from the start of the program to its end. Disk is what the device of the working directory writes", count(s.messages))
	case "outbox":
		res.Work = fmt.Sprintf("%s messages of about %d bytes, which are in the outbox before. Each becomes a record, a row and a request", count(s.messages), costBytes)
	}
	spent, err := r.Env.spend(ctx, s, false)
	if err != nil {
		return err
	}
	res.Ours = *spent
	fmt.Fprintf(r.Log, "%s: %+v\n", s.name, *spent)
	if s.plain != nil || s.copyEvery > 0 {
		if res.Peer, err = r.Env.spend(ctx, s, true); err != nil {
			return fmt.Errorf("without keys: %w", err)
		}
		res.PeerVersion = "bench/peers/plain"
		if s.copyEvery > 0 {
			res.PeerVersion = "bench/peers/kafkacopy"
		}
		fmt.Fprintf(r.Log, "%s without keys: %+v\n", s.name, *res.Peer)
	}
	res.Date = time.Now().UTC().Format(time.RFC3339)
	return res.Save(r.Env.results())
}

// costRun is one run of a scenario or of its peer.
type costRun struct {
	*scenario
	e       *Env
	plainly bool // the peer
	dir     string
	env     []string
	servers []*services.Server
	kafka   *kafkaCluster
	broker  *brokerServer
	dsn     string
	db      *pgx.Conn
	listen  string
	api     *httptest.Server
	asked   atomic.Int64 // requests to the service
	group   string       // that commits offsets
	data    *costMessages
	closes  []func() error

	count     int // of rows
	countedAt time.Time
}

// spend measures one run.
func (e *Env) spend(ctx context.Context, s *scenario, plainly bool) (_ *result.Spent, err error) {
	c := &costRun{scenario: s, e: e, plainly: plainly, data: newCostMessages(s)}
	defer func() {
		for i := len(c.closes) - 1; i >= 0; i-- {
			err = errors.Join(err, c.closes[i]())
		}
	}()
	if c.dir, err = e.fresh("cost"); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	cmd, err := c.command(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.prefill(ctx); err != nil {
		return nil, err
	}
	if s.from == "file" {
		return c.whole(cmd)
	}
	return c.measure(ctx, cmd)
}

// start starts the servers, and makes topics and tables.
func (c *costRun) start(ctx context.Context) (err error) {
	if c.from == "kafka" || c.from == "outbox" {
		if c.kafka, err = startKafka(ctx, 1, kafkaPartitions); err != nil {
			return err
		}
		c.closes = append(c.closes, c.kafka.close)
		c.servers = append(c.servers, c.kafka.servers...)
		made, err := c.kafka.client.CreateTopics(ctx, kafkaPartitions, 1, nil, append(c.out, c.in)...)
		if err := errors.Join(err, made.Error()); err != nil {
			return err
		}
		c.env = append(c.env, "KAFKA_BROKERS="+c.kafka.addrs[0])
	}
	if start := map[string]func(context.Context) (*brokerServer, error){"rabbitmq": startRabbitMQ, "nats": startNATS, "sqs": startSQS}[c.from]; start != nil {
		if c.broker, err = start(ctx); err != nil {
			return err
		}
		c.closes = append(c.closes, c.broker.close)
		c.servers = append(c.servers, c.broker.server)
		c.env = append(c.env, "RABBITMQ_ADDR="+c.broker.server.Addr(), "NATS_SERVERS="+c.broker.server.Addr(), "SQS_QUEUE_URL="+c.broker.url, "SQS_DLQ_URL="+c.broker.url,
			"AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=x", "AWS_SECRET_ACCESS_KEY=x")
	}
	if c.rows != "" || c.database {
		if err := c.startDatabase(ctx); err != nil {
			return err
		}
	}
	if c.redis {
		server, err := startRedis(ctx)
		if err != nil {
			return err
		}
		c.closes = append(c.closes, server.Close)
		c.servers = append(c.servers, server)
		c.env = append(c.env, "REDIS_URL="+server.URL())
	}
	if c.toAPI {
		c.api = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { c.asked.Add(1) }))
		c.closes = append(c.closes, func() error { c.api.Close(); return nil })
		c.env = append(c.env, "API_URL="+c.api.URL)
	}
	if c.from == "file" {
		input := c.e.input(c.messages)
		if _, err := lines.File(input, inputSeed, c.messages); err != nil {
			return err
		}
		c.env = append(c.env, "INPUT="+input)
	}
	if c.from == "http" {
		var release func()
		if c.listen, release, err = services.FreeAddr(); err != nil {
			return err
		}
		c.closes = append(c.closes, func() error { release(); return nil })
		c.env = append(c.env, "LISTEN="+c.listen)
	}
	more, err := c.data.environment()
	c.env = append(c.env, more...)
	c.closes = append(c.closes, c.data.close)
	return err
}

func (c *costRun) startDatabase(ctx context.Context) error {
	server, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	c.closes = append(c.closes, server.Close)
	c.servers = append(c.servers, server)
	c.dsn = server.URL()
	c.env = append(c.env, "DATABASE_URL="+c.dsn)
	if c.db, err = pgx.Connect(ctx, c.dsn); err != nil {
		return err
	}
	c.closes = append(c.closes, func() error { return c.db.Close(context.WithoutCancel(ctx)) })
	return nil
}

// command writes the configuration, makes its tables, and returns the command of the program.
func (c *costRun) command(ctx context.Context) (*exec.Cmd, error) {
	text, err := exec.CommandContext(ctx, c.e.work("bin", "semel"), "init", c.name).Output()
	if err != nil {
		return nil, err
	}
	config := string(text)
	for i := 0; i+1 < len(c.edits); i += 2 {
		if !strings.Contains(config, c.edits[i]) {
			return nil, fmt.Errorf("the configuration has no %q", c.edits[i])
		}
		config = strings.Replace(config, c.edits[i], c.edits[i+1], 1)
	}
	if c.table != "" {
		if _, err := c.db.Exec(ctx, c.table); err != nil {
			return nil, err
		}
	}
	if c.db != nil {
		for line := range strings.Lines(config) {
			if _, table, ok := strings.Cut(line, "# The target: "); ok {
				if _, err := c.db.Exec(ctx, table); err != nil {
					return nil, err
				}
			}
		}
	}
	if c.plainly {
		c.group = plainGroup
		return c.peer(ctx)
	}
	if _, rest, ok := strings.Cut(config, " group: "); ok {
		c.group = strings.Fields(rest)[0]
	}
	file := filepath.Join(c.dir, "semel.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	semel := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, c.e.work("bin", "semel"), args...)
		cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
		return cmd
	}
	if c.db != nil {
		if out, err := semel("migrate", "up", "--config", file, "--store-name", "db").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("migrate: %w: %s", err, out)
		}
	}
	return semel("run", file, "--admin", "off", "--log-level", "warn"), nil
}

// plainGroup is the group of the programs without keys.
const plainGroup = "plain"

// peer returns the command of the program without keys.
func (c *costRun) peer(ctx context.Context) (*exec.Cmd, error) {
	if c.copyEvery > 0 {
		return exec.CommandContext(ctx, c.e.work("bin", "kafkacopy"), "-bootstrap", c.kafka.addrs[0], "-in", c.in, "-out", c.out[0], "-group", plainGroup, "-eos", "-commit", c.copyEvery.String()), nil
	}
	args := []string{"-from", c.from, "-key", c.keyRule()}
	switch c.from {
	case "kafka":
		args = append(args, "-address", c.kafka.addrs[0], "-queue", c.in)
	case "sqs":
		args = append(args, "-queue", c.broker.url)
	case "http":
		args = append(args, "-address", c.listen, "-queue", c.in)
	default:
		args = append(args, "-address", c.broker.server.Addr(), "-queue", brokerQueue)
	}
	target := c.dsn
	switch {
	case c.toAPI:
		target = c.api.URL
	case c.rows == "":
		target = c.output()
	}
	return exec.CommandContext(ctx, c.e.work("bin", "plain"), append(append(args, c.plain...), "-target", target)...), nil
}

// keyRule finds the id of a message, as the scenario does.
func (c *costRun) keyRule() string {
	if c.name == "sns" {
		return ".MessageId"
	}
	return "." + c.id
}

// countPause is the pause between two counts of rows, which take time of the server.
const countPause = time.Second

// counted returns the number of rows. It asks the server once in countPause, or now.
func (c *costRun) counted(ctx context.Context, now bool) (int, error) {
	if !now && time.Since(c.countedAt) < countPause {
		return c.count, nil
	}
	err := c.db.QueryRow(ctx, "SELECT count(*) FROM "+c.rows).Scan(&c.count)
	c.countedAt = time.Now()
	return c.count, err
}

// committed returns how many records the group has committed of the input.
func (c *costRun) committed(ctx context.Context) (done int, err error) {
	offsets, err := c.kafka.client.FetchOffsetsForTopics(ctx, c.group, c.in)
	if err != nil {
		return 0, err
	}
	offsets.Each(func(o kadm.OffsetResponse) { done += int(max(o.At, 0)) })
	return done, nil
}

// wanted returns how many effects the messages have.
func (c *costRun) wanted() int {
	if c.plainly || c.from == "outbox" {
		return c.messages
	}
	return c.data.distinct(c.messages)
}

// ended reports whether all messages have had their effect.
func (c *costRun) ended(ctx context.Context) (bool, error) {
	if c.from == "kafka" {
		done, err := c.committed(ctx)
		return done >= c.messages, err
	}
	done, err := c.counted(ctx, false)
	if c.toAPI {
		done = min(done, int(c.asked.Load()))
	}
	return done >= c.wanted(), err
}

// begun returns how many messages have been handled by now, about.
func (c *costRun) begun(ctx context.Context) (done int, err error) {
	switch {
	case c.toAPI:
		done = int(c.asked.Load())
	case c.rows != "":
		done, err = c.counted(ctx, true)
	case len(c.out) > 0:
		return c.committed(ctx)
	default:
		info, failed := os.Stat(c.output())
		if failed != nil {
			return 0, nil // it will be there
		}
		done = int(info.Size()) / (costBytes + 1)
	}
	return done * c.messages / c.wanted(), err
}

// output is the file of a sink that writes one.
func (c *costRun) output() string {
	if c.plainly {
		return filepath.Join(c.dir, "out.jsonl")
	}
	return filepath.Join(c.dir, c.in+".jsonl")
}

// counters are what the machine counts.
type counters struct {
	program, servers time.Duration
	network          float64 // bytes
}

func (c *costRun) counters(pid int) (now counters, err error) {
	if now.program, err = processorTime(pid); err != nil {
		return now, err
	}
	for _, server := range c.servers {
		of, err := familyTime(server.PID())
		if err != nil {
			return now, err
		}
		now.servers += of
	}
	now.network, err = loopbackBytes()
	return now, err
}

// measure runs the program until all messages have had their effect.
func (c *costRun) measure(ctx context.Context, cmd *exec.Cmd) (_ *result.Spent, err error) {
	unix.Sync()
	written, err := writtenBytes(c.dir)
	if err != nil {
		return nil, err
	}
	cluster := c.kafka
	if cluster == nil {
		cluster = &kafkaCluster{}
	}
	r, err := startProgram(ctx, cluster, func(context.Context, []string, string) (*exec.Cmd, error) { return cmd, nil }, c.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.kill()) }()
	pid := r.cmd.Process.Pid
	already := 0
	first, err := c.counters(pid)
	if err != nil {
		return nil, err
	}
	if c.from == "http" {
		if err := c.listens(r); err != nil {
			return nil, fmt.Errorf("%w: %s", err, r.said())
		}
		already = 1
		if err := c.request(0, already); err != nil {
			return nil, fmt.Errorf("%w: %s", err, r.said())
		}
	} else if err := r.until(ctx, "its first effect", func(ctx context.Context) (bool, error) {
		done, err := c.begun(ctx)
		already = done
		return done > 0, err
	}); err != nil {
		return nil, err
	}
	before, err := c.counters(pid)
	if err != nil {
		return nil, err
	}
	if already > c.messages/2 { // there are so few that the start of the program is part of it
		before, already = first, 0
	}
	if c.from == "http" {
		if err := c.request(1, c.messages); err != nil {
			return nil, fmt.Errorf("%w: %s", err, r.said())
		}
	} else if err := r.until(ctx, "the end of its input", c.ended); err != nil {
		return nil, err
	}
	after, err := c.counters(pid)
	if err != nil {
		return nil, err
	}
	memory, err := peakMiB(pid)
	if err != nil {
		return nil, err
	}
	if err := r.stop(); err != nil {
		return nil, err
	}
	unix.Sync()
	end, err := writtenBytes(c.dir)
	if err != nil {
		return nil, err
	}
	if err := c.check(ctx); err != nil {
		return nil, fmt.Errorf("%w: %s", err, r.said())
	}
	scale := 1e6 / float64(c.messages-already)
	return &result.Spent{
		CPU: max(after.program-before.program, tick).Seconds() * scale, Servers: (after.servers - before.servers).Seconds() * scale,
		Network: (after.network - before.network) / (1 << 20) * scale, Disk: (end - written) / (1 << 20) * 1e6 / float64(c.messages), Memory: memory,
	}, nil
}

// whole measures a program that ends by itself, from its start.
func (c *costRun) whole(cmd *exec.Cmd) (*result.Spent, error) {
	unix.Sync()
	written, err := writtenBytes(c.dir)
	if err != nil {
		return nil, err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	unix.Sync()
	end, err := writtenBytes(c.dir)
	if err != nil {
		return nil, err
	}
	want, err := lines.File(c.e.input(c.messages), inputSeed, c.messages)
	if err != nil {
		return nil, err
	}
	if err := check(filepath.Join(c.dir, "clean.jsonl"), want); err != nil {
		return nil, err
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	scale := 1e6 / float64(c.messages)
	return &result.Spent{
		CPU:  (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() * scale,
		Disk: (end - written) / (1 << 20) * scale, Memory: float64(usage.Maxrss) / 1024,
	}, nil
}

// check compares the number of effects with the messages.
func (c *costRun) check(ctx context.Context) error {
	want := c.wanted()
	if c.toAPI {
		if got := int(c.asked.Load()); got != want {
			return fmt.Errorf("the service got %d requests, want %d", got, want)
		}
	}
	if c.rows == "" {
		return nil
	}
	got, err := c.counted(ctx, true)
	if err == nil && got != want {
		err = fmt.Errorf("there are %d rows, want %d", got, want)
	}
	return err
}

// loopbackBytes returns what the loopback interface has received since it was started.
func loopbackBytes() (float64, error) {
	text, err := machine.Field("/proc/net/dev", "lo")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.Fields(text)[0], 64)
}

// writtenBytes returns what the device of a directory has written since it was started.
func writtenBytes(dir string) (float64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	if err != nil {
		return 0, fmt.Errorf("suite: %s is on no disk: %w", dir, err)
	}
	// The seventh field is sectors of 512 bytes.
	sectors, err := strconv.ParseFloat(strings.Fields(string(text))[6], 64)
	return sectors * 512, err
}
