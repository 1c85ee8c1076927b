package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startLimit bounds a start without a deadline.
	startLimit = 6 * time.Minute
	// stopLimit is how long an orderly stop may take.
	stopLimit = 3 * time.Minute
	// pollPause is the pause between two checks whether a server answers.
	pollPause = 10 * time.Millisecond
)

// Server is one real server. Addr, URL, Dir and Name never change. The other
// methods may be called concurrently and run one after the other.
type Server struct {
	kind kind
	dir  string
	held io.Closer // the lock of dir, until the server is closed
	port int
	owns io.Closer // the claim of port

	mu      sync.Mutex // guards the fields below, and is held while a server starts or stops
	args    []string   // added to the command line
	process *process   // the last started process; nil after Close
	paused  bool
}

// kind has the differences between servers.
type kind struct {
	name    string
	program string
	// configure, if any, writes the server's configuration before each start.
	configure func(dir string, port int) error
	args      func(dir string, port int) []string
	url       func(addr string) string
	// started is text that the server writes when it serves. It is empty if an
	// answer is enough.
	started string
	// ready returns nil if the server answers, and is the process pid with the
	// data in dir.
	ready func(ctx context.Context, addr, dir string, pid int) error
	stop  syscall.Signal // stops it in order
	death syscall.Signal // ends it when this process ends
}

// start makes the directory, calls prepare to fill it, and starts the server on
// a free port. The context bounds the start, not the life of the server.
func start(ctx context.Context, k kind, prepare func(ctx context.Context, dir string) error, args []string) (*Server, error) {
	return startOn(ctx, 0, k, prepare, args)
}

// startOn is start on a given port, or on any port if that is 0.
func startOn(ctx context.Context, port int, k kind, prepare func(ctx context.Context, dir string) error, args []string) (*Server, error) {
	s := &Server{kind: k, args: slices.Clone(args), port: port}
	if err := s.makeDir(); err != nil {
		return nil, fmt.Errorf("services: directory of %s: %w", k.name, err)
	}
	err := error(nil)
	if prepare != nil {
		err = prepare(ctx, s.dir)
	}
	if err == nil {
		err = s.startSomewhere(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("services: start %s: %w", k.name, err), s.Close())
	}
	return s, nil
}

// launch starts the process on s.port and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	if s.kind.configure != nil {
		if err := s.kind.configure(s.dir, s.port); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	args := append(s.kind.args(s.dir, s.port), s.args...)
	before, _ := log.Seek(0, io.SeekEnd)
	s.process, err = launch(s.kind.program, args, s.dir, log, s.kind.death)
	if err != nil {
		return err
	}
	s.paused = false
	if err := s.waitReady(ctx, before); err != nil {
		err = errors.Join(err, s.kill())
		text := s.logSince(before)
		if strings.Contains(strings.ToLower(text), "address already in use") {
			return errPortTaken
		}
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

func (s *Server) waitReady(ctx context.Context, before int64) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ticker := time.NewTicker(pollPause)
	defer ticker.Stop()
	err := errors.New("it was not asked")
	for {
		select {
		case <-s.process.done:
			return fmt.Errorf("it ended before it answered: %v", s.process.err)
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w (%w)", err, ctx.Err())
		case <-ticker.C:
		}
		if !strings.Contains(s.logSince(before), s.kind.started) {
			err = fmt.Errorf("it has not written %q", s.kind.started)
			continue
		}
		attempt, done := context.WithTimeout(ctx, 5*time.Second)
		err = s.kind.ready(attempt, s.Addr(), s.dir, s.process.pid)
		done()
		if err == nil {
			return nil
		}
	}
}

// Name returns the kind and version of the server, such as "redis-7.0".
func (s *Server) Name() string { return s.kind.name }

// Addr returns host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Port returns the port of Addr.
func (s *Server) Port() int { return s.port }

// URL returns the address in the form that clients read, such as
// redis://127.0.0.1:15001.
func (s *Server) URL() string { return s.kind.url(s.Addr()) }

// Dir returns the directory of the server's data and log. It exists until
// Close.
func (s *Server) Dir() string { return s.dir }

// PID returns the id of the last started process.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid
}

// Running reports whether the server's process exists, paused or not.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running()
}

func (s *Server) running() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.process.done:
		return false
	default:
		return true
	}
}

// Log returns the end of the server's output, at most 8 KiB.
func (s *Server) Log() string {
	const most = 8 << 10
	info, err := os.Stat(s.logFile())
	if err != nil {
		return ""
	}
	return s.logSince(max(0, info.Size()-most))
}

// logName is the file with a server's output, in its directory.
const logName = "log"

func (s *Server) logFile() string { return filepath.Join(s.dir, logName) }

func (s *Server) logSince(offset int64) string {
	content, err := os.ReadFile(s.logFile())
	if err != nil || int64(len(content)) < offset {
		return ""
	}
	return string(content[offset:])
}

// Kill ends the server and all its processes with SIGKILL, and returns when
// they are gone. Data that the server has written stays in the page cache,
// synced or not. So Kill is not a power failure.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

func (s *Server) kill() error {
	if !s.running() {
		return nil
	}
	if err := s.process.killAll(stopLimit); err != nil {
		return fmt.Errorf("services: kill %s: %w", s.kind.name, err)
	}
	return nil
}

// Stop ends the server in order and returns when it is gone. Its data stays for
// Restart. A server that does not stop within three minutes is killed, and the error
// says so.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt()
}

func (s *Server) halt() error {
	if !s.running() {
		return nil
	}
	if s.paused {
		if err := s.resume(); err != nil {
			return err
		}
	}
	if err := s.process.signal(s.kind.stop); err != nil {
		return fmt.Errorf("services: stop %s: %w", s.kind.name, err)
	}
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case <-s.process.done:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("services: %s did not stop within %s and was killed", s.kind.name, stopLimit), s.kill())
	}
}

// Pause stops the server and all its processes with SIGSTOP, and returns when
// they have stopped. Connections stay open and get no answers.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return fmt.Errorf("services: pause %s: it does not run", s.kind.name)
	}
	if err := s.process.pauseAll(); err != nil {
		return fmt.Errorf("services: pause %s: %w", s.kind.name, err)
	}
	s.paused = true
	if err := s.process.waitPaused(stopLimit); err != nil {
		return fmt.Errorf("services: pause %s: %w", s.kind.name, err)
	}
	return nil
}

// Continue ends a Pause.
func (s *Server) Continue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return fmt.Errorf("services: continue %s: it does not run", s.kind.name)
	}
	return s.resume()
}

func (s *Server) resume() error {
	if err := s.process.continueAll(); err != nil {
		return fmt.Errorf("services: continue %s: %w", s.kind.name, err)
	}
	s.paused = false
	return nil
}

// Restart starts the server again with its port and its data, and returns when
// it answers. It first stops a running server in order. args are added to the
// command line of this and later starts.
func (s *Server) Restart(ctx context.Context, args ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return fmt.Errorf("services: restart %s: it was closed", s.kind.name)
	}
	if err := s.halt(); err != nil {
		return err
	}
	s.args = append(s.args, args...)
	if err := s.launch(ctx); err != nil {
		return fmt.Errorf("services: restart %s: %w", s.kind.name, err)
	}
	return nil
}

// Close kills the server and removes its data. A second Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.kill()
	s.process = nil
	s.releasePort()
	if s.held != nil {
		err = errors.Join(err, removeData(s.dir), s.held.Close())
		s.held = nil
	}
	return err
}

// dirPrefix begins the names of all server directories, and runPrefix those of [TempDir].
const dirPrefix, runPrefix = "semel-server-", "semel-run-"

// dataRoot is where servers have their directories.
func dataRoot() string { return cmp.Or(os.Getenv("SEMEL_SERVICES_DIR"), os.TempDir()) }

// makeDir makes the directory of a server and locks it, so that other processes know of its use.
// It removes directories of killed processes.
func (s *Server) makeDir() (err error) {
	sweep()
	if s.dir, err = os.MkdirTemp(dataRoot(), dirPrefix+s.kind.name+"-*"); err != nil {
		return err
	}
	if s.held, err = Lock(s.dir, false); err != nil {
		return errors.Join(err, os.Remove(s.dir))
	}
	return giveAway(s.dir)
}

// TempDir makes a directory beside those of servers, for the temporary files of programs that
// use them. Every user may write to it. It is in [os.TempDir] if no program can be executed
// there, as in the memory of a container. Remove removes it. If this process is killed, the
// next start of a server does.
func TempDir() (dir string, remove func() error, err error) {
	sweep()
	root := dataRoot()
	if !executes(root) {
		root = os.TempDir()
	}
	if dir, err = os.MkdirTemp(root, runPrefix); err != nil {
		return "", nil, err
	}
	held, err := Lock(dir, false)
	if err == nil {
		err = os.Chmod(dir, 0o777|os.ModeSticky)
	}
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), held.Close()) }, nil
}

// writeFile writes a file that the server can read and change into a server's
// directory.
func writeFile(dir, name string, content []byte) error {
	name = filepath.Join(dir, name)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		return err
	}
	return giveAway(name)
}

// sweep removes directories of servers and programs whose owner is gone. A directory that is
// younger than a minute may not be locked yet. Directories that cannot be
// removed belong to another user.
func sweep() {
	left, _ := filepath.Glob(filepath.Join(dataRoot(), dirPrefix+"*"))
	programs, _ := filepath.Glob(filepath.Join(dataRoot(), runPrefix+"*"))
	for _, dir := range append(left, programs...) {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		held, err := Lock(dir, false)
		if err != nil {
			continue
		}
		_ = removeData(dir)
		_ = held.Close()
	}
}

// removeData removes the directory of a server that has ended. It first removes
// the shared memory that a killed PostgreSQL leaves, which no directory holds and
// of which a machine has a limited number (SHMMNI, 4,096 by default).
func removeData(dir string) error {
	memory, err := postgresMemory(dataDir(dir))
	if err == nil {
		removeMemory(memory)
	}
	return os.RemoveAll(dir)
}
