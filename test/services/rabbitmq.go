package services

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// RabbitMQOptions are the options of [StartRabbitMQ].
type RabbitMQOptions struct {
	// Config has settings of the application rabbit as Erlang terms, such as
	// "{consumer_timeout, 2000}", separated by commas. Defaults to nothing.
	Config string
	// Management is the address of its HTTP API, such as one of [FreeAddr]. The
	// server starts more slowly with it. Defaults to no HTTP API.
	Management string
}

// Distances from the port of a node to its other ports. They stay away from the
// ports of other servers and from those of FreeAddr.
const (
	rabbitDistOffset = 10_000
	rabbitEpmdOffset = -13_000
)

// StartRabbitMQ starts one node and returns when it answers. Nil options are valid.
// If the server is not installed, the error wraps [ErrNotInstalled]. A queue
// survives a Kill only after [AwaitQueue].
func StartRabbitMQ(ctx context.Context, opts *RabbitMQOptions) (*Server, error) {
	var o RabbitMQOptions
	if opts != nil {
		o = *opts
	}
	program, err := Find(RabbitMQ3)
	if err != nil {
		return nil, err
	}
	return start(ctx, rabbitKind(program, o), nil, nil)
}

// rabbitScript replaces the shell with the node, so that signals reach it. epmd, the
// registry of Erlang nodes, would otherwise become a daemon that outlives the node.
const rabbitScript = `setpriv --pdeathsig KILL -- epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & exec "$0" "$@"`

func rabbitKind(program string, o RabbitMQOptions) kind {
	return kind{
		name:      RabbitMQ3,
		program:   "/usr/bin/env",
		configure: func(dir string, port int) error { return configureRabbit(dir, port, o) },
		args: func(dir string, port int) []string {
			return append(rabbitEnvironment(dir, port), "/bin/sh", "-c", rabbitScript, program)
		},
		url:   func(addr string) string { return addr },
		ready: rabbitReady,
		stop:  syscall.SIGTERM,
		death: syscall.SIGKILL,
	}
}

// rabbitNode returns the name of the node. It says in each greeting whose data the
// server has.
func rabbitNode(dir string) string {
	base := filepath.Base(dir)
	return "n" + base[strings.LastIndexByte(base, '-')+1:] + "@localhost"
}

func rabbitEnvironment(dir string, port int) []string {
	return []string{
		"RABBITMQ_NODENAME=" + rabbitNode(dir),
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", port),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", port+rabbitDistOffset),
		fmt.Sprintf("ERL_EPMD_PORT=%d", port+rabbitEpmdOffset),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(dir, "data"),
		"RABBITMQ_LOG_BASE=" + filepath.Join(dir, "logs"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + filepath.Join(dir, "advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(dir, "env.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(dir, "plugins"),
		"RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
		"RUNNING_UNDER_SYSTEMD=true", // the script replaces itself with the server
	}
}

func configureRabbit(dir string, port int, o RabbitMQOptions) error {
	for _, p := range []int{port + rabbitDistOffset, port + rabbitEpmdOffset} {
		if !free(p) {
			return errPortTaken
		}
	}
	plugins := "[]."
	config := fmt.Sprintf("listeners.tcp.default = 127.0.0.1:%d\nloopback_users = none\nlog.console.level = warning\n"+
		"vm_memory_high_watermark.absolute = 512MB\ndisk_free_limit.absolute = 50MB\n", port)
	if o.Management != "" {
		host, port, err := net.SplitHostPort(o.Management)
		if err != nil {
			return err
		}
		plugins = "[rabbitmq_management]."
		config += "management.tcp.ip = " + host + "\nmanagement.tcp.port = " + port + "\n"
	}
	if err := writeFile(dir, "rabbitmq.conf", []byte(config)); err != nil {
		return err
	}
	if err := writeFile(dir, "advanced.config", []byte("[{rabbit, ["+o.Config+"]}].\n")); err != nil {
		return err
	}
	return writeFile(dir, "plugins", []byte(plugins))
}

// rabbitReady reads the greeting of the server. It names the node.
func rabbitReady(ctx context.Context, addr, dir string, _ int) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	head := make([]byte, 7)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	size := int(head[5])<<8 | int(head[6]) // the upper half is zero in a greeting
	if head[0] != 1 {
		return fmt.Errorf("it greets with %q", head)
	}
	greeting := make([]byte, size)
	if _, err := io.ReadFull(conn, greeting); err != nil {
		return err
	}
	// It may add the domain to the host.
	if node, _, _ := strings.Cut(rabbitNode(dir), "localhost"); !bytes.Contains(greeting, []byte(node)) {
		return fmt.Errorf("another node than %s answers: %q", node, greeting)
	}
	return nil
}

// AwaitQueue waits until a quorum queue of the virtual host / survives a Kill. The
// server confirms a new quorum queue before its registry of queues is in a file.
func AwaitQueue(ctx context.Context, s *Server, queue string) error {
	registry := filepath.Join(s.Dir(), "data", rabbitNode(s.Dir()), "quorum", rabbitNode(s.Dir()), "names.dets")
	return until(ctx, "queue "+queue, func(context.Context) error {
		content, err := os.ReadFile(registry)
		if err == nil && !bytes.Contains(content, []byte(queue)) {
			err = fmt.Errorf("%s does not have it", registry)
		}
		return err
	})
}
