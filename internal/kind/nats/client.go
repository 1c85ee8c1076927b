// Package nats is the kind of source that reads a stream of NATS JetStream, and the
// kind of sink that publishes to one.
package nats

import (
	"errors"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
)

// Client configures the connection to NATS.
type Client struct {
	Servers []string
	TLS     *config.TLS
	// Credentials is a file with a JWT and its seed.
	Credentials string
	Username    string
	Password    schema.Secret
}

// fields are the connection fields.
func (c *Client) fields() []schema.Field {
	return []schema.Field{
		schema.AddressesField("servers", &c.Servers, "4222", "Addresses of some servers, `host:port`.").Need(),
		config.TLSField(&c.TLS),
		schema.PathField("credentials", &c.Credentials, "File with credentials, as `nsc` writes it.").Means("none"),
		schema.TextField("username", &c.Username, "User name, if there is no file with credentials.").Means("none"),
		schema.SecretField("password", &c.Password, "Password of the user, or a token if there is no user name.").Means("none"),
	}
}

// drops has the server's default. The stream may have another duplicate window, which
// the doctor compares.
func (*Client) drops() config.Drops {
	return config.Drops{Server: "NATS", For: 2 * time.Minute, Setting: "duplicate_window of the stream"}
}

func (c *Client) url() string { return strings.Join(c.Servers, ",") }

// options returns the connection options.
func (c *Client) options() ([]natsgo.Option, error) {
	var opts []natsgo.Option
	if c.TLS != nil {
		secured, err := c.TLS.Config()
		if err != nil {
			return nil, err
		}
		opts = append(opts, natsgo.Secure(secured))
	}
	switch {
	case c.Credentials != "":
		opts = append(opts, natsgo.UserCredentials(c.Credentials))
	case c.Username != "":
		opts = append(opts, natsgo.UserInfo(c.Username, c.Password.Reveal()))
	case !c.Password.IsZero():
		opts = append(opts, natsgo.Token(c.Password.Reveal()))
	}
	return opts, nil
}

// Advise implements config.Kind for the source and the sink.
func (c *Client) Advise(_ *config.File, _ *config.Pipeline, path string, err error) *diagnose.Error {
	if said := diagnose.Certificate(err, path+".tls.ca", path+".servers"); said != nil {
		return said
	}
	said := &diagnose.Error{Public: true}
	var missing *nats.MissingError
	switch {
	case errors.As(err, &missing) && missing.Consumer != "":
		said.Cause = missing.Error()
		said.Remedy = "create it with nats consumer add " + missing.Stream + " " + missing.Consumer + " --pull --ack explicit, or set " + path + ".create: true"
	case errors.As(err, &missing) && missing.Stream != "":
		said.Cause = missing.Error()
		said.Remedy = "create it with nats stream add " + missing.Stream + ", or set " + path + ".subjects with create: true"
	case errors.As(err, &missing):
		said.Cause = missing.Error()
		said.Remedy = "create a stream with nats stream add, or set " + path + ".stream with create: true"
	case errors.Is(err, natsgo.ErrAuthorization), errors.Is(err, natsgo.ErrAuthExpired), errors.Is(err, natsgo.ErrAuthRevoked):
		said.Cause, said.Remedy = "the servers refuse these credentials", "correct "+path+".credentials, or username and password"
	case errors.Is(err, natsgo.ErrPermissionViolation):
		said.Cause, said.Remedy = diagnose.Line(err.Error()), "grant it to the user of "+path
	case errors.Is(err, natsgo.ErrNoServers):
		said.Cause, said.Remedy = "no NATS server answers at "+strings.Join(c.Servers, ", "), "is a server up there, can this machine reach it, and is it the right kind of server? If not, correct "+path+".servers"
	case errors.Is(err, natsgo.ErrSecureConnRequired):
		said.Cause, said.Remedy = "the servers require TLS", "set "+path+".tls: {}"
	case errors.Is(err, natsgo.ErrSecureConnWanted):
		said.Cause, said.Remedy = "the servers have no TLS", "leave "+path+".tls out, or correct "+path+".servers"
	default:
		return nil
	}
	return said
}
