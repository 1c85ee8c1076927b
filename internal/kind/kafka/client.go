// Package kafka is the kind of source that reads Kafka topics, the kind of sink
// that writes one, and the transaction in which both commit together.
package kafka

import (
	"errors"
	"fmt"
	"slices"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Client configures the connection to Kafka.
type Client struct {
	Brokers []string
	TLS     *config.TLS
	SASL    *SASL
}

// fields are the connection fields.
func (c *Client) fields() []schema.Field {
	return []schema.Field{
		schema.AddressesField("brokers", &c.Brokers, "9092", "Addresses of some brokers, `host:port`.").Need(),
		config.TLSField(&c.TLS),
		saslField(&c.SASL),
	}
}

// options returns the connection options.
func (c *Client) options() ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.ClientID("semel")}
	if c.TLS != nil {
		secured, err := c.TLS.Config()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(secured))
	}
	if c.SASL != nil {
		opts = append(opts, kgo.SASL(c.SASL.mechanism()))
	}
	return opts, nil
}

func compression(name string) kgo.CompressionCodec {
	switch name {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

func reset(start string) kafka.Reset {
	if start == "latest" {
		return kafka.ResetEnd
	}
	return kafka.ResetStart
}

// lint checks client authentication. path is the path of the source or sink.
func (c *Client) lint(l *config.Linter, path string) {
	if c.SASL != nil {
		c.SASL.lint(l, path, c.TLS != nil)
	}
}

// sameBrokers reports whether two lists have a broker in common.
func sameBrokers(a, b []string) bool {
	return slices.ContainsFunc(a, func(broker string) bool { return slices.Contains(b, broker) })
}

// endOf returns the Kafka client of a pipeline's source or sink, or nil if
// neither is Kafka.
func endOf(p *config.Pipeline) *Client {
	if s, ok := p.Sink.(*Sink); ok {
		return &s.Client
	}
	if s, ok := p.Source.(*Source); ok {
		return &s.Client
	}
	return nil
}

// fenced adds a remedy to the error of a member that another process replaced.
func fenced(err error) error {
	if errors.Is(err, kafka.ErrFenced) {
		err = fmt.Errorf("%w: give each process a name of its own with source.kafka.instance", err)
	}
	return err
}

var (
	_ config.TransactionalSource = (*Source)(nil)
	_ config.Topics              = (*Source)(nil)
	_ config.Topics              = (*Sink)(nil)
)
