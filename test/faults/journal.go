package faults

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

// A journal is a file of entries, written by a process that does nothing else:
// what it has answered is synced, whatever becomes of who asked.

// serveJournal appends what comes over connections to a file, until its
// standard input ends, which is when the process that started it has gone. It
// prints its address.
func serveJournal(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end is the end of who started us
		listener.Close()
	}()
	lines := make(chan line)
	defer close(lines)
	go appendLines(file, lines)
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go serveLines(conn, lines)
	}
}

// line is one entry on its way to the file.
type line struct {
	text   []byte
	synced chan<- error
}

// serveLines answers each line of a connection when it is synced.
func serveLines(conn net.Conn, lines chan<- line) {
	defer conn.Close()
	synced := make(chan error, 1)
	for in := bufio.NewReader(conn); ; {
		// A line without an end was torn by the death of its writer, who did
		// not get an answer: it does not count.
		text, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		lines <- line{text, synced}
		if <-synced != nil {
			return
		}
		if _, err := conn.Write([]byte("\n")); err != nil {
			return
		}
	}
}

// appendLines writes lines, those that wait together with one sync.
func appendLines(file *os.File, lines <-chan line) {
	for first := range lines {
		together := []line{first}
		for more := true; more && len(together) < 64; {
			select {
			case l, ok := <-lines:
				if more = ok; ok {
					together = append(together, l)
				}
			default:
				more = false
			}
		}
		var text []byte
		for _, l := range together {
			text = append(text, l.text...)
		}
		_, err := file.Write(text)
		if err == nil {
			err = file.Sync()
		}
		for _, l := range together {
			l.synced <- err
		}
	}
}

// recorder appends to a journal. It is safe for concurrent use, by as many as
// there are connections without waiting.
type recorder struct {
	addr string

	mu   sync.Mutex // guards idle
	idle []net.Conn
}

// record returns when the entry is synced. Without a journal nothing can be
// proved, so its errors end the process.
func (r *recorder) record(e entry) {
	if err := r.tryRecord(e); err != nil {
		fmt.Fprintln(os.Stderr, "the journal:", err)
		os.Exit(statusBroken)
	}
}

func (r *recorder) tryRecord(e entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	conn, err := r.conn()
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, conn)
	return nil
}

func (r *recorder) conn() (net.Conn, error) {
	r.mu.Lock()
	if n := len(r.idle); n > 0 {
		conn := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.mu.Unlock()
		return conn, nil
	}
	r.mu.Unlock()
	return net.Dial("tcp", r.addr)
}

// close closes the idle connections.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.idle {
		conn.Close()
	}
	r.idle = nil
}

// readJournal reads a journal as it is now. The last line may be under way.
func readJournal(path string) ([]entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var journal []entry
	for in := bufio.NewReader(file); ; {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return journal, nil
		}
		if err != nil {
			return nil, err
		}
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, len(journal)+1, err)
		}
		journal = append(journal, e)
	}
}
