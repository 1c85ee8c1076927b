package redis

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/store/redisstore"
)

// Advise implements config.Kind. The client library has no types for the answers
// of the server; each starts with a word.
func (s *Store) Advise(f *config.File, p *config.Pipeline, path string, err error) *diagnose.Error {
	if silent, ok := errors.AsType[*redisstore.SilentError](err); ok {
		said := cmp.Or(s.Advise(f, p, path, silent.Last), diagnose.Network(silent.Last))
		if said != nil {
			said.Cause = "no answer since " + silent.Since.UTC().Format(time.RFC3339) + ": " + said.Cause
			if said.Shown != "" {
				said.Shown = "no answer since " + silent.Since.UTC().Format(time.RFC3339) + ": " + said.Shown
			}
		}
		return said
	}
	secure, write, plain := s.TLS != nil, path+".tls: {}", "leave "+path+".tls out"
	user, field, at := s.Username, path+".password", strings.Join(s.Cluster, ", ")
	if s.Sentinel != nil {
		at = "one of the Sentinels " + strings.Join(s.Sentinel.Addresses, ", ")
	}
	if !s.URL.IsZero() {
		field = path + ".url"
		if u, err := url.Parse(s.URL.Reveal()); err == nil {
			user, at = u.User.Username(), u.Host
			secure, write, plain = u.Scheme == "rediss" || u.Scheme == "valkeys", "rediss:// instead of redis:// in "+field, "write redis:// instead of rediss:// in "+field
		}
	}
	if said := diagnose.Certificate(err, path+".tls.ca", cmp.Or(strings.TrimSuffix(field, ".password"), path)); said != nil {
		return said
	}
	text := err.Error()
	said := &diagnose.Error{Public: true}
	switch {
	case strings.Contains(text, "WRONGPASS"):
		said.Cause, said.Remedy = "password refused", "check the user and the password in "+field
		if user != "" {
			said.Cause += " for user " + user
		}
	case strings.Contains(text, "NOAUTH"):
		said.Cause, said.Remedy = "the server needs a password", "write it in "+field
	case strings.Contains(text, "NOPERM"):
		said.Cause, said.Remedy, said.Public = diagnose.Line(text), "in redis-cli, "+s.grant(cmp.Or(user, "default")), false
	case strings.Contains(text, "READONLY"):
		said.Cause, said.Remedy = "the server is a replica, which accepts no writes", "name the primary in "+field+", or use sentinel"
	case !secure && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || strings.Contains(text, "connection reset by peer")):
		said.Cause, said.Remedy = "the server at "+at+" closed the connection", "does it expect TLS? Then write "+write+". Otherwise: is it up, or going down?"
	case secure && errors.Is(err, context.DeadlineExceeded) && !strings.Contains(text, "i/o timeout"): // a server without TLS reads the handshake and waits for a line end
		said.Cause, said.Remedy = "the server at "+at+" does not answer with TLS", "does it speak TLS at this port? If not, "+plain+". Otherwise: is it up, and the right kind of server?"
	case errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*net.OpError)), // diagnose.Network has the address of an OpError
		strings.Contains(text, "no answer within "): // the client's own limit, of a server that takes connections and answers nothing
		said.Cause, said.Remedy = "no Redis server answers at "+at, "is the server up, can this machine reach it, and is it the right kind of server?"
	default:
		return nil
	}
	return said
}

// grant returns the command that lets a user work with the store.
func (s *Store) grant(user string) string {
	return "ACL SETUSER " + user + " ~" + cmp.Or(s.Prefix, redisstore.DefaultPrefix) + "* " + redisstore.Permissions
}
