// Package kafka is the kind of source that reads Kafka topics, the kind of sink
// that writes one, and the transaction in which both commit together.
package kafka

import (
	"errors"
	"fmt"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Client configures the connection to Kafka.
type Client struct {
	Brokers []string
	TLS     *config.TLS
	SASL    *SASL
}

// SASL configures client authentication.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
	Mechanism string
	Username  string
	Password  schema.Secret
}

// fields are the connection fields.
func (c *Client) fields() []schema.Field {
	return []schema.Field{
		schema.AddressesField("brokers", &c.Brokers, "9092", "Addresses of some brokers, `host:port`.").Need(),
		config.TLSField(&c.TLS),
		schema.PartField("sasl", func() schema.Mapping {
			c.SASL = &SASL{}
			return schema.Mapping{Fields: []schema.Field{
				schema.ChoiceField("mechanism", &c.SASL.Mechanism, "The SASL mechanism.", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512").Need(),
				schema.TextField("username", &c.SASL.Username, "User name.").Need(),
				schema.SecretField("password", &c.SASL.Password, "Password.").Need(),
			}}
		}, "Authentication to the brokers.").Means("off").Titled("SASL"),
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
	if s := c.SASL; s != nil {
		auth := scram.Auth{User: s.Username, Pass: s.Password.Reveal()}
		switch s.Mechanism {
		case "SCRAM-SHA-256":
			opts = append(opts, kgo.SASL(auth.AsSha256Mechanism()))
		case "SCRAM-SHA-512":
			opts = append(opts, kgo.SASL(auth.AsSha512Mechanism()))
		case "PLAIN":
			opts = append(opts, kgo.SASL(plain.Auth{User: auth.User, Pass: auth.Pass}.AsMechanism()))
		}
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
	if c.SASL != nil && c.TLS == nil && c.SASL.Mechanism == "PLAIN" {
		l.Add(semel.Warning, config.NoRisk, l.At(path+".sasl.mechanism"), "PLAIN without tls", "the password is sent in clear text", "set tls: {}, or use SCRAM-SHA-512")
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
