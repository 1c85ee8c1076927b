package config

import (
	"cmp"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// policies looks at what follows failures.
func (l *linter) policies() {
	p := l.pipeline
	if p.OnFailure.Then == "drop" {
		l.add(semel.Warning, Loss, l.at("on_failure.then"), "drop", "a message whose last attempt failed is lost", "then: park")
	}
	if p.OnStoreError == "pass" {
		l.add(semel.Warning, Repeat, l.at("on_store_error"), "pass", "while the store does not answer, every repeat has its effect again", "on_store_error: stop")
	}
	if p.Observe {
		l.add(semel.Notice, Repeat, l.at("observe"), "true", "what is a duplicate, late or a mismatch is delivered all the same: every repeat has its effect again", "none while you watch; then take it out")
	}
}

// source looks at where messages come from.
func (l *linter) source() {
	p := l.pipeline
	switch s := p.Source.(type) {
	case *KafkaSource:
		if s.Start == "latest" {
			l.add(semel.Warning, Loss, l.at("source.kafka.start"), "latest", "what was written before the group first read, or while its offsets were gone, is never read", "start: earliest")
		}
		if s.Repartition != nil {
			l.repartition(s)
		}
		l.kafkaTLS("source.kafka", &s.KafkaClient)
	case *FileSource:
		if s.From == "end" {
			l.add(semel.Warning, Loss, l.at("source.file.from"), "end", "what a file holds when it is met first is never read", "from: beginning")
		}
		if sink, ok := p.Sink.(*FileSink); ok && slices.ContainsFunc(s.Paths, func(glob string) bool {
			matched, err := filepath.Match(filepath.Clean(glob), filepath.Clean(sink.Path))
			return matched && err == nil
		}) {
			l.add(semel.Broken, NoRisk, l.at("sink.file.path"), sink.Path+" is one of the source's files", "the pipeline reads what it writes", "a path that no pattern of the source matches")
		}
	case *HTTPSource:
		if s.Token.IsZero() && (s.TLS == nil || s.TLS.ClientCA == "") && !isLoopback(hostOf(s.Listen)) {
			l.add(semel.Warning, NoRisk, l.at("source.http.listen"), s.Listen+", which others can reach, without token", "whoever reaches it can send messages", "token, or tls with client_ca; or a loopback address")
		}
		if s.TLS == nil && !s.Token.IsZero() && !isLoopback(hostOf(s.Listen)) {
			l.add(semel.Warning, NoRisk, l.at("source.http.token"), "a token without tls", "it passes readable", "tls: { certificate, key }, or a proxy that has it")
		}
	}
}

// repartition looks at a stage that has copies of a key meet.
func (l *linter) repartition(s *KafkaSource) {
	p, path := l.pipeline, l.at("source.kafka.repartition")
	if l.mode != SourceIsSink {
		l.add(semel.Broken, NoRisk, path, "a stage for keys in Kafka, and the keys are in the store "+p.Store.Name, "the store finds a key whatever partition its copies are in: nothing would be gained", "leave it out, or leave store out: keys, outputs and offsets are then one transaction of Kafka")
		return
	}
	topic := s.RepartitionTopic()
	others := append([]string{p.Parked.Topic, cmp.Or(p.Transaction.Changelog, s.Group+"-keys")}, s.Topics...)
	if sink, ok := p.Sink.(*KafkaSink); ok {
		others = append(others, sink.Topic)
	}
	if slices.Contains(others, topic) {
		l.add(semel.Broken, NoRisk, path+".topic", topic+", which the pipeline uses otherwise", "what is in it would be taken for what it is not", "a topic of its own")
	}
	if p.Transaction.Time == "event" {
		l.add(semel.Warning, NoRisk, l.at("transaction.grace"), schema.Duration(p.Transaction.Grace)+", with a repartition stage", "it mixes the records of several partitions: one that is behind the others by more than the grace is late, and on_late decides what becomes of it", "a grace above what partitions are apart while a backlog is read, or time: processing")
	}
}

// sink looks at where messages go to.
func (l *linter) sink() {
	p := l.pipeline
	switch s := p.Sink.(type) {
	case *KafkaSink:
		l.kafkaSink(s)
	case *WebhookSink:
		l.webhook(s)
	case *PostgresSink:
		l.postgresSink(s)
	case *StdoutSink:
		l.notice(l.at("sink.stdout"), "standard output", "a line counts as delivered when it is written to the pipe, whatever its reader does with it", "none for trying out; else a sink that keeps it")
	}
}

func (l *linter) kafkaSink(s *KafkaSink) {
	if s.Acks != "all" {
		l.add(semel.Broken, Loss, l.at("sink.kafka.acks"), s.Acks, "a record that counts as delivered is lost with one broker", "acks: all")
	}
	if !s.Idempotent {
		l.add(semel.Broken, Repeat, l.at("sink.kafka.idempotent"), "false", "a record whose answer is lost is written twice", "idempotent: true")
	}
	source, fromKafka := l.pipeline.Source.(*KafkaSource)
	if fromKafka && l.mode != SourceIsSink && sameBrokers(source.Brokers, s.Brokers) {
		l.add(semel.Warning, Repeat, l.at("store"), "keys beside Kafka, from Kafka to Kafka", "a crash between the record and the completion of its key writes the record again",
			"no store: keys, outputs and offsets are then one transaction of Kafka")
	}
	l.kafkaTLS("sink.kafka", &s.KafkaClient)
}

func (l *linter) kafkaTLS(path string, c *KafkaClient) {
	if c.TLS != nil && c.TLS.InsecureSkipVerify {
		l.unverified(l.at(path + ".tls.insecure_skip_verify"))
	}
	if c.SASL != nil && c.TLS == nil && c.SASL.Mechanism == "PLAIN" {
		l.add(semel.Warning, NoRisk, l.at(path+".sasl.mechanism"), "PLAIN without tls", "the password passes readable", "tls: {}, or SCRAM-SHA-512")
	}
}

func (l *linter) unverified(path string) {
	l.add(semel.Warning, NoRisk, path, "true", "whoever stands between can read, and answer for the server", "name the authority with ca, and take insecure_skip_verify out")
}

func (l *linter) storeTLS(s *Store) {
	if spec, ok := s.Spec.(*Redis); ok && spec.TLS != nil && spec.TLS.InsecureSkipVerify {
		l.unverified("stores." + s.Name + ".redis.tls.insecure_skip_verify")
	}
}

// webhook looks at a target's address. Names are not looked up.
func (l *linter) webhook(s *WebhookSink) {
	u, err := url.Parse(s.URL.Reveal())
	if err != nil {
		return // it was read
	}
	path := l.at("sink.webhook.url")
	host := u.Hostname()
	if u.Scheme == "http" && !isLoopback(host) {
		l.add(semel.Warning, NoRisk, path, "http://", "whoever stands between can read and change messages, and answer for the target", "https://")
	}
	if s.TLS != nil && s.TLS.InsecureSkipVerify {
		l.unverified(l.at("sink.webhook.tls.insecure_skip_verify"))
	}
	address, err := netip.ParseAddr(host)
	if isLoopback(host) && err != nil {
		address, err = netip.MustParseAddr("127.0.0.1"), nil
	}
	address = address.Unmap().WithZone("") // as the sink compares it
	switch {
	case err == nil && !isPublic(address) && !slices.ContainsFunc(s.AllowPrivate, func(p netip.Prefix) bool { return p.Contains(address) }):
		l.add(semel.Broken, NoRisk, path, host+" is a private address", "the sink refuses to connect there, so that no message can reach inner services", "allow_private: ["+netip.PrefixFrom(address, address.BitLen()).String()+"]")
	case err != nil && len(s.AllowPrivate) == 0 && (!strings.Contains(host, ".") || slices.ContainsFunc([]string{".internal", ".local", ".lan", ".home.arpa", ".svc"}, func(end string) bool { return strings.HasSuffix(host, end) })):
		l.notice(path, host+" is the name of an inner service", "if it has a private address, the sink refuses to connect there", "allow_private: the network, such as [10.0.0.0/8]")
	}
}

func (l *linter) postgresSink(s *PostgresSink) {
	p := l.pipeline
	decider := l.file.Decider(p.Store.Name)
	if decider == nil || l.mode == SameTransaction || p.Observe {
		return
	}
	spec, ok := decider.Spec.(*Postgres)
	if !ok {
		return
	}
	const cost = "keys and rows are two transactions: a crash between them repeats the row"
	switch {
	case s.Store.Name == decider.Name:
		l.add(semel.Warning, Repeat, l.at("store"), p.Store.Name+", a stack above "+decider.Name, cost, "store: "+decider.Name+", so that keys and rows are one transaction")
	case s.DSN.Reveal() != "" && s.DSN.Reveal() == spec.DSN.Reveal():
		l.add(semel.Warning, Repeat, l.at("sink.postgres.dsn"), "the database of store "+decider.Name, cost, "store: "+decider.Name+" in place of dsn, so that keys and rows are one transaction")
	}
}

// hostOf is the host of an address to listen on.
func hostOf(listen string) string {
	host, _, _ := schema.CutLast(listen, ":")
	return strings.Trim(host, "[]")
}

func isLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// isPublic reports whether an address is one that anybody may be sent to.
func isPublic(address netip.Addr) bool {
	address = address.Unmap()
	shared := netip.MustParsePrefix("100.64.0.0/10")
	return address.IsGlobalUnicast() && !address.IsPrivate() && !shared.Contains(address)
}
