package services

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// NATSOptions are the options of [StartNATS].
type NATSOptions struct {
	// Config is added to the configuration of the server, which has JetStream with
	// a directory of its own. Defaults to nothing.
	Config string
}

// natsConfig is the name of the configuration file.
const natsConfig = "nats.conf"

// StartNATS starts one server with JetStream and returns when it answers. Nil
// options are valid. If the server is not installed, the error wraps
// [ErrNotInstalled].
func StartNATS(ctx context.Context, opts *NATSOptions) (*Server, error) {
	var o NATSOptions
	if opts != nil {
		o = *opts
	}
	program, err := Find(NATS2)
	if err != nil {
		return nil, err
	}
	prepare := func(_ context.Context, dir string) error {
		// A tag says who answers: after a restart on the same port the process id
		// cannot, because the server does not tell it to clients.
		config := fmt.Sprintf("jetstream { store_dir: %q }\nserver_name: %q\n%s\n", filepath.Join(dir, "data"), filepath.Base(dir), o.Config)
		return writeFile(dir, natsConfig, []byte(config))
	}
	return start(ctx, natsKind(program), prepare, nil)
}

func natsKind(program string) kind {
	return kind{
		name:    NATS2,
		program: program,
		args: func(dir string, port int) []string {
			return []string{"-c", filepath.Join(dir, natsConfig), "-a", "127.0.0.1", "-p", strconv.Itoa(port)}
		},
		url:   func(addr string) string { return "nats://" + addr },
		ready: natsReady,
		stop:  syscall.SIGTERM,
		death: syscall.SIGKILL,
	}
}

// natsReady reads the greeting of the server. It comes after JetStream has started.
func natsReady(ctx context.Context, addr, dir string, _ int) error {
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
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	var info struct {
		Name string `json:"server_name"`
	}
	greeting, ok := strings.CutPrefix(line, "INFO ")
	if !ok {
		return fmt.Errorf("it greets with %q", line)
	}
	if err := json.Unmarshal([]byte(greeting), &info); err != nil {
		return err
	}
	if want := filepath.Base(dir); info.Name != want {
		return fmt.Errorf("server %q answers instead of %q", info.Name, want)
	}
	return nil
}
