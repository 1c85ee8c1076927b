package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/semel-dev/semel/internal/listen"
)

// socketName is the name of the socket in the directory of a store. The store ignores
// the file. A new name takes the place of the old one, so a socket that a killed process
// left behind does not matter. The lock of the store says which process has it open.
const (
	socketName = "SOCKET"
	socketTemp = "SOCKET.tmp"
)

// Listen creates the socket in the directory of a store that this process has open.
// The caller closes the listener before the store. Connections of other users than the
// own one and root are marked as foreign; see [NewServer].
func ListenIn(dir string) (net.Listener, error) {
	at, release, err := reach(dir, socketTemp)
	if err != nil {
		return nil, err
	}
	defer release()
	temp := filepath.Join(dir, socketTemp)
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := listen.Unix(filepath.Join(at, socketTemp))
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	// The socket gets its name when only its user can connect.
	if err = os.Chmod(temp, 0o600); err == nil {
		err = os.Rename(temp, filepath.Join(dir, socketName))
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(temp))
	}
	return &socket{listener, dir}, nil
}

// socket is the listener of a store's directory.
type socket struct {
	*net.UnixListener
	dir string
}

// Close implements net.Listener. It removes the socket.
func (s *socket) Close() error {
	err := os.Remove(filepath.Join(s.dir, socketName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, s.UnixListener.Close())
}

// foreign is the key of a context whose connection belongs to another user.
type foreign struct{}

// onlyOwner returns a server for a socket. It refuses every user but the one of this
// process and root.
func onlyOwner(handler http.Handler) *http.Server {
	return &http.Server{
		ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if err := checkPeer(c); err != nil {
				ctx = context.WithValue(ctx, foreign{}, err)
			}
			return ctx
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err, is := r.Context().Value(foreign{}).(error); is {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
			handler.ServeHTTP(w, r)
		}),
	}
}

// ForeignError means that the process that listens in the directory of a store runs as a
// user who may not speak for the store.
type ForeignError struct {
	Socket string
	User   int
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s belongs to a process of user %d, who does not own the directory: its answers are not trusted. If it is your semel run, run this command as that user, or give that user the directory", e.Socket, e.User)
}

// Dial returns a client for the process that has the store in a directory open. It
// fails if no process listens there. On Linux it fails with a [ForeignError] if that
// process runs neither as the user of this one, nor as root, nor as the owner of the
// directory.
func Dial(ctx context.Context, dir string) (*Client, error) {
	dial := func(ctx context.Context) (net.Conn, error) {
		at, release, err := reach(dir, socketName)
		if err != nil {
			return nil, err
		}
		defer release()
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(at, socketName))
		if err != nil {
			return nil, err
		}
		if err := checkHolder(conn, dir); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}
	conn, err := dial(ctx)
	if foreign, ok := errors.AsType[*ForeignError](err); ok {
		return nil, foreign
	}
	if err != nil {
		return nil, &NoAnswerError{filepath.Join(dir, socketName), err}
	}
	_ = conn.Close() // the connection only showed that a process listens
	c := NewClient("http://semel", &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}, nil)
	c.name = "the process behind " + filepath.Join(dir, socketName)
	return c, nil
}

// mostPath is the length of the longest address of a socket on every system.
const mostPath = 103

// reach returns a path to a directory that is short enough for a socket in it. The path
// is valid until release is called.
func reach(dir, name string) (at string, release func(), err error) {
	if len(filepath.Join(dir, name)) <= mostPath {
		return dir, func() {}, nil
	}
	return shortcut(dir)
}
