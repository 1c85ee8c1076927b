// Package rabbitmq is the kind of source that reads a queue of RabbitMQ, and the
// kind of sink that publishes to one.
package rabbitmq

import (
	"context"
	"errors"
	"net"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
)

// Client configures the connection to RabbitMQ.
type Client struct {
	Servers    []string
	TLS        *config.TLS
	VHost      string
	Username   string
	Password   schema.Secret
	Management string
}

// fields are the connection fields.
func (c *Client) fields() []schema.Field {
	return []schema.Field{
		schema.AddressesField("servers", &c.Servers, "5672", "Addresses of nodes of one cluster, `host:port`. The first one that answers is used.").Need(),
		config.TLSField(&c.TLS),
		schema.TextField("vhost", &c.VHost, "Virtual host.").Or("/"),
		schema.TextField("username", &c.Username, "User name. Servers accept `guest` from their own machine only.").Or("guest"),
		schema.SecretField("password", &c.Password, "Password of the user.").Means("guest"),
		schema.TextField("management", &c.Management, "URL of the HTTP API, such as `http://host:15672`. A source reads the delivery limit of a policy there, and `semel doctor` checks types, limits and alarms. Without it, neither can.").Means("none"),
	}
}

// client returns how to reach the servers.
func (c *Client) client() (rabbitmq.Client, error) {
	secured, err := c.TLS.Config()
	return rabbitmq.Client{Addrs: c.Servers, TLS: secured, VHost: c.VHost, User: c.Username, Password: c.Password.Reveal()}, err
}

// examine adds what the doctor finds.
func (c *Client) examine(ctx context.Context, x *config.Examination, opts *rabbitmq.ExamineOptions) {
	client, err := c.client()
	if err == nil {
		opts.Client, opts.Management, opts.Window = client, c.Management, x.Pipeline.Window
		var findings []doctor.Finding
		findings, err = rabbitmq.Examine(ctx, opts)
		x.Add(findings)
	}
	x.Fail("", err)
}

// Advise implements config.Kind for the source and the sink.
func (c *Client) Advise(_ *config.File, _ *config.Pipeline, path string, err error) *diagnose.Error {
	if said := diagnose.Certificate(err, path+".tls.ca", path+".servers"); said != nil {
		return said
	}
	said := &diagnose.Error{Public: true}
	var missing *rabbitmq.MissingError
	var unroutable *rabbitmq.UnroutableError
	var answer *amqp.Error
	var network *net.OpError
	switch {
	case errors.As(err, &missing) && missing.Queue != "":
		said.Cause = missing.Error()
		said.Remedy = "create it with rabbitmqadmin declare queue name=" + missing.Queue + ` durable=true arguments='{"x-queue-type":"quorum"}', or set ` + path + ".create: true"
	case errors.As(err, &missing):
		said.Cause = missing.Error()
		said.Remedy = "create it with rabbitmqadmin declare exchange name=" + missing.Exchange + " type=topic durable=true, or set " + path + ".create: true"
	case errors.As(err, &unroutable) && unroutable.Exchange == "":
		said.Cause, said.Remedy = unroutable.Error(), "create the queue "+unroutable.RoutingKey+"; the pipeline then continues by itself"
	case errors.As(err, &unroutable):
		said.Cause = unroutable.Error()
		said.Remedy = "bind a queue with rabbitmqadmin declare binding source=" + unroutable.Exchange + " destination=QUEUE routing_key=" + unroutable.RoutingKey
	case errors.Is(err, amqp.ErrCredentials):
		said.Cause, said.Remedy = "the servers refuse this user and password", "correct "+path+".username and password; guest works only on the machine of the server"
	case errors.Is(err, amqp.ErrVhost), errors.As(err, &answer) && answer.Code == amqp.NotAllowed:
		said.Cause, said.Remedy = "the user may not use the virtual host "+c.VHost+", or there is none", "create it with rabbitmqctl add_vhost "+c.VHost+", and grant the right with rabbitmqctl set_permissions"
	case errors.As(err, &answer) && answer.Code == amqp.AccessRefused:
		said.Cause, said.Remedy = diagnose.Line(answer.Reason), "grant the user this right with rabbitmqctl set_permissions"
	case errors.As(err, &answer) && answer.Code == amqp.PreconditionFailed && strings.Contains(answer.Reason, "timeout"):
		said.Cause, said.Remedy = "the server's consumer time-out has passed: "+diagnose.Line(answer.Reason), "the messages come again by themselves; raise consumer_timeout on the server if effects take that long"
	case errors.As(err, &answer) && answer.Code == amqp.FrameError && c.TLS == nil:
		said.Cause, said.Remedy = "a server at "+strings.Join(c.Servers, ", ")+" does not answer with AMQP", "does it expect TLS? Then write "+path+".tls: {}. Otherwise: is it the right kind of server and port?"
	case strings.Contains(err.Error(), "first record does not look like a TLS handshake"):
		said.Cause, said.Remedy = "a server at "+strings.Join(c.Servers, ", ")+" has no TLS at this port", "leave "+path+".tls out, or correct "+path+".servers"
	case errors.As(err, &network) && network.Op == "dial":
		said.Cause, said.Remedy = "no RabbitMQ server answers at "+strings.Join(c.Servers, ", "), "is a server up there, can this machine reach it, and is it the right kind of server?"
	default:
		return nil
	}
	return said
}
