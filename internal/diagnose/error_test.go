package diagnose_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
)

func TestErrorsOfTheNetworkHaveARemedy(t *testing.T) {
	t.Parallel()
	dial := func(address string, err error) error {
		to, parseErr := net.ResolveTCPAddr("tcp", address)
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		return &net.OpError{Op: "dial", Net: "tcp", Addr: to, Err: err}
	}
	refused := func(address string) error {
		return dial(address, os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	for _, c := range []struct {
		err    error
		want   string
		public bool
	}{
		{fmt.Errorf("a: %w", refused("10.0.0.1:5432")), "no server listens at 10.0.0.1:5432: connection refused: is the server up, and the port right?", true},
		{ // several hosts, one of them tried twice
			errors.Join(refused("[::1]:5432"), refused("10.0.0.1:5432"), refused("[::1]:5432")),
			"no server listens at [::1]:5432: connection refused; no server listens at 10.0.0.1:5432: connection refused: is the server up, and the port right?", true,
		},
		{dial("10.0.0.1:80", os.NewSyscallError("connect", syscall.EHOSTUNREACH)), "cannot reach 10.0.0.1:80: no route to host: can this machine reach it?", true},
		{dial("10.0.0.1:80", os.ErrDeadlineExceeded), "no answer from 10.0.0.1:80: i/o timeout: is the server up, can this machine reach it, and is it the right kind of server?", true},
		{fmt.Errorf("write: %w", &os.PathError{Op: "write", Path: "/data/out.jsonl", Err: syscall.ENOSPC}), "no space left for /data: free space on that disk", true},
		{&net.DNSError{Name: "db", Err: "no such host", IsNotFound: true}, "no such host: db: check the name of the host", true},
		{&net.DNSError{Name: "db", Err: "server misbehaving"}, "the name db cannot be resolved: server misbehaving: check the DNS server of this machine", true},
		{errors.New("tls: first record does not look like a TLS handshake"), "tls: first record does not look like a TLS handshake: does the server speak TLS at this port?", false},
		{fmt.Errorf("read: %w", io.EOF), "read: EOF: the server closed the connection: is it the right kind of server, and does it need TLS?", false},
		{fmt.Errorf("ask: %w", context.DeadlineExceeded), "ask: context deadline exceeded: is the server up, can this machine reach it, and is it the right kind of server?", false},
	} {
		got := diagnose.Network(c.err)
		if got == nil || got.Error() != c.want || got.Public != c.public || !errors.Is(got, c.err) {
			t.Errorf("%v becomes\n%v, want\n%v", c.err, got, c.want)
		}
	}
	for _, err := range []error{errors.New("division by zero"), fmt.Errorf("tls: %w", &os.PathError{Op: "open", Path: "ca.pem", Err: syscall.ENOENT}), fmt.Errorf("tls: ca.pem holds no certificate: %w", semel.ErrInvalidRequest)} {
		if got := diagnose.Network(err); got != nil {
			t.Errorf("%v", got)
		}
	}
}

func TestLineJoinsTheLinesOfADriverError(t *testing.T) {
	t.Parallel()
	const text = "failed to connect to `user=app`:\n\t10.0.0.1:5432 (a): refused\n\t10.0.0.2:5432 (b): refused\r\n\t10.0.0.1:5432 (a): refused\n"
	if got, want := diagnose.Line(text), "failed to connect to `user=app`: 10.0.0.1:5432 (a): refused; 10.0.0.2:5432 (b): refused"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
