package services

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// RedisDo sends one command to a Redis server on a new connection and returns
// the answer: a string, an int64, nil, or a []any of these. An error of the
// server is a [RedisError]. Use RedisDo to set up and inspect servers in any
// state. It is not fast.
func RedisDo(ctx context.Context, addr string, command ...string) (any, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(conn, request.String()); err != nil {
		return nil, err
	}
	return readReply(bufio.NewReader(conn))
}

// dial connects to a server. The deadline of ctx, if any, also ends reads and writes.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// RedisError is an error answer of a Redis server.
type RedisError string

func (e RedisError) Error() string { return string(e) }

func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("empty reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, RedisError(rest)
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$', '*':
		size, err := strconv.Atoi(rest)
		if err != nil || size < 0 {
			return nil, err
		}
		if kind == '$' {
			text := make([]byte, size+len("\r\n"))
			_, err := io.ReadFull(r, text)
			return string(text[:size]), err
		}
		list := make([]any, size)
		for i := range list {
			if list[i], err = readReply(r); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("unknown reply %q", line)
}

// redisInfo asks for a section of INFO and returns its fields.
func redisInfo(ctx context.Context, addr, section string) (map[string]string, error) {
	reply, err := RedisDo(ctx, addr, "INFO", section)
	if err != nil {
		return nil, err
	}
	text, ok := reply.(string)
	if !ok {
		return nil, fmt.Errorf("INFO answered %T", reply)
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}
