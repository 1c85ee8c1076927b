package suite

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// httpLoad sends requests over connections, one at a time on each. It is one thread that waits
// for all connections at once, as redis-benchmark is: a client of net/http would take more of
// the shared cores than the server that it measures.
type httpLoad struct {
	address         string
	conns, requests int
	// request writes request number i over the one before on the same connection.
	request func(buf []byte, i int) []byte
	// check checks the body of an answer, whose status is 200.
	check func(body []byte) error

	epoll int
	all   []*loadConn // by file descriptor; nil where another file is
	sent  int
	took  []time.Duration
}

// loadConn is one connection.
type loadConn struct {
	fd      int
	out, in []byte
	got     int // bytes of the answer
	at      time.Time
}

// loadAnswer is the longest answer.
const loadAnswer = 256 << 10

// run returns the requests per second, and the time below which 99 of 100 were answered.
func (l *httpLoad) run() (rate float64, late time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	for range l.conns {
		if err := l.connect(); err != nil {
			return 0, 0, err
		}
	}
	l.took = make([]time.Duration, 0, l.requests)
	start := time.Now()
	for _, c := range l.all {
		if c != nil {
			if err := l.send(c); err != nil {
				return 0, 0, err
			}
		}
	}
	events := make([]unix.EpollEvent, l.conns)
	for len(l.took) < l.requests {
		n, err := unix.EpollWait(l.epoll, events, 10_000)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, 0, err
		case n == 0:
			return 0, 0, errors.New("suite: the server answers nothing for 10 s")
		}
		for _, event := range events[:n] {
			if err := l.receive(l.all[event.Fd]); err != nil {
				return 0, 0, err
			}
		}
	}
	rate = float64(l.requests) / time.Since(start).Seconds()
	slices.Sort(l.took)
	return rate, l.took[len(l.took)*99/100], nil
}

// connect opens one connection.
func (l *httpLoad) connect() error {
	address, err := net.ResolveTCPAddr("tcp4", l.address)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for len(l.all) <= fd {
		l.all = append(l.all, nil)
	}
	l.all[fd] = &loadConn{fd: fd, in: make([]byte, loadAnswer)}
	err = errors.Join(
		unix.Connect(fd, &unix.SockaddrInet4{Port: address.Port, Addr: [4]byte(address.IP.To4())}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetNonblock(fd, true),
		unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}),
	)
	if err != nil {
		return fmt.Errorf("suite: connect to %s: %w", l.address, err)
	}
	return nil
}

// send sends the next request, unless all were sent.
func (l *httpLoad) send(c *loadConn) error {
	if l.sent == l.requests {
		return nil
	}
	c.out, c.got = l.request(c.out, l.sent), 0
	l.sent++
	c.at = time.Now()
	n, err := unix.Write(c.fd, c.out)
	if err == nil && n < len(c.out) {
		err = fmt.Errorf("only %d of %d bytes were written: the buffer of the connection is too small", n, len(c.out))
	}
	if err != nil {
		return fmt.Errorf("suite: send: %w", err)
	}
	return nil
}

// receive reads what is there, and sends the next request if that is a whole answer.
func (l *httpLoad) receive(c *loadConn) error {
	n, err := unix.Read(c.fd, c.in[c.got:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("suite: receive: %w", err)
	case n == 0:
		return fmt.Errorf("suite: the server closed the connection, or its answer is too long: %.200s", c.in[:c.got])
	}
	c.got += n
	body, whole, err := answerBody(c.in[:c.got])
	if err != nil || !whole {
		return err
	}
	l.took = append(l.took, time.Since(c.at))
	if err := l.check(body); err != nil {
		return err
	}
	return l.send(c)
}

// answerBody returns the body of an answer, and whether all of it is there.
func answerBody(answer []byte) (body []byte, whole bool, err error) {
	head, body, ended := bytes.Cut(answer, []byte("\r\n\r\n"))
	if !ended {
		return nil, false, nil
	}
	_, rest, found := bytes.Cut(head, []byte("\r\nContent-Length: "))
	digits, _, _ := bytes.Cut(rest, []byte("\r\n"))
	length, wrong := strconv.Atoi(string(digits))
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) || !found || wrong != nil {
		return nil, false, fmt.Errorf("suite: the answer is %.500s", answer)
	}
	return body, len(body) == length, nil
}

func (l *httpLoad) close() error {
	errs := []error{unix.Close(l.epoll)}
	for _, c := range l.all {
		if c != nil {
			errs = append(errs, unix.Close(c.fd))
		}
	}
	return errors.Join(errs...)
}
