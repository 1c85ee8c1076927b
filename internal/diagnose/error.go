package diagnose

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/semel-dev/semel"
)

// Error is an error of a server in words for people.
type Error struct {
	// Cause says what happened. Remedy says what to do; it may be empty.
	Cause, Remedy string
	// Public means that the text has no part of a message. It comes from the
	// configuration, the network, the system or the protocol.
	Public bool
	// Shown replaces a Cause that is not Public for clients that may not see messages. It is
	// empty if nothing may be shown.
	Shown string
	// OfKind means that the kind of the server knows the error, and that the remedy
	// names its place in the configuration.
	OfKind bool
	// Err is the error itself.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Cause
	}
	return e.Cause + ": " + e.Remedy
}

// ForAll returns the error for clients that may not see messages, or nil.
func (e *Error) ForAll() *Error {
	switch {
	case e.Public:
		return e
	case e.Shown == "":
		return nil
	}
	shown := *e
	shown.Cause, shown.Public = e.Shown, true
	return &shown
}

// Unwrap returns the error itself.
func (e *Error) Unwrap() error { return e.Err }

// Network returns the meaning of an error of the network, and the remedy. It returns nil
// if the error is not one of the network.
func Network(err error) *Error {
	var causes []string
	remedy := ""
	add := func(cause, how string) {
		if !slices.Contains(causes, cause) {
			causes = append(causes, cause)
		}
		if remedy == "" {
			remedy = how
		}
	}
	each(err, func(err error) bool {
		switch of := err.(type) {
		case *net.DNSError:
			if of.IsNotFound {
				add("no such host: "+of.Name, "check the name of the host")
			} else {
				add("the name "+of.Name+" cannot be resolved: "+of.Err, "check the DNS server of this machine")
			}
			return false
		case *fs.PathError:
			if of.Err == syscall.ENOSPC || of.Err == syscall.EDQUOT {
				add("no space left for "+filepath.Dir(of.Path), "free space on that disk")
				return false
			}
		case *net.OpError:
			if cause, how := ofOperation(of); cause != "" {
				add(cause, how)
				return false
			}
		}
		return true
	})
	if causes == nil {
		return ofText(err)
	}
	return &Error{Cause: strings.Join(causes, "; "), Remedy: remedy, Public: true, Err: err}
}

// ofOperation describes an operation on a connection that failed.
func ofOperation(of *net.OpError) (cause, remedy string) {
	to := ""
	if of.Addr != nil {
		to = " " + of.Addr.String()
	}
	var number syscall.Errno
	switch {
	case of.Op == "dial" && errors.Is(of.Err, syscall.ECONNREFUSED):
		return "no server listens at" + to + ": connection refused", "is the server up, and the port right?"
	case of.Timeout():
		return "no answer from" + to + ": i/o timeout", unanswered
	case errors.As(of.Err, &number) && (number == syscall.ENETUNREACH || number == syscall.EHOSTUNREACH):
		return "cannot reach" + to + ": " + number.Error(), "can this machine reach it?"
	case errors.As(of.Err, &number) && (number == syscall.ECONNRESET || number == syscall.EPIPE || number == syscall.ECONNABORTED):
		return "the server" + strings.Replace(to, " ", " at ", 1) + " closed the connection: " + number.Error(), "is it up, or going down? Does it need TLS?"
	case of.Op == "remote error": // an alert of TLS
		return "the server refuses the TLS connection: " + of.Err.Error(), "check the certificates of both sides"
	}
	return "", ""
}

const unanswered = "is the server up, can this machine reach it, and is it the right kind of server?"

// signs are remedies for errors that have no type of their own, chosen by a text in
// the error. The first match is used.
var signs = [...]struct{ sign, shown, remedy string }{
	{"x509: ", "the certificate of the server is not valid here", "check the certificates and their host names"},
	{"tls: ", "there is no TLS connection", "does the server speak TLS at this port?"},
	{"unexpected message", "the server answers with something else", "is it the right kind of server?"},
	{"connection reset", closed, broken},
	{"broken pipe", closed, broken},
	{"use of closed network connection", closed, broken},
	{"conn closed", closed, broken},
	{"tx is closed", closed, broken},
}

const (
	closed = "the connection to the server broke"
	broken = "is the server up, or going down?"
)

// ofText describes an error by its text.
func ofText(err error) *Error {
	text := Line(err.Error())
	if _, ofFile := errors.AsType[*fs.PathError](err); ofFile || strings.Contains(text, "tls: ") && errors.Is(err, semel.ErrInvalidRequest) {
		return nil // no server is the cause
	}
	for _, s := range signs {
		if strings.Contains(text, s.sign) {
			return &Error{Cause: text, Shown: s.shown, Remedy: s.remedy, Err: err}
		}
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.HasSuffix(text, "EOF"):
		return &Error{Cause: text, Shown: closed, Remedy: "the server closed the connection: is it the right kind of server, and does it need TLS?", Err: err}
	case errors.Is(err, context.DeadlineExceeded), strings.Contains(text, "timeout: "):
		return &Error{Cause: text, Shown: "no answer in time", Remedy: unanswered, Err: err}
	}
	return nil
}

// Certificate says why this program refuses the certificate of a server, or returns nil.
// authorities and host are the places in the configuration of the authorities that it trusts,
// and of the name of the server.
func Certificate(err error, authorities, host string) *Error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return &Error{Cause: "the certificate of the server is signed by an unknown authority", Remedy: "name the file with the certificate of that authority in " + authorities, Public: true}
	}
	if of, ok := errors.AsType[x509.HostnameError](err); ok {
		return &Error{Cause: "the certificate of the server is for another host: " + strings.TrimPrefix(of.Error(), "x509: "), Remedy: "correct the host in " + host + ", or give the server a certificate for it", Public: true}
	}
	if of, ok := errors.AsType[x509.CertificateInvalidError](err); ok && of.Reason == x509.Expired {
		return &Error{Cause: "the certificate of the server is not valid now: " + strings.TrimPrefix(of.Error(), "x509: "), Remedy: "give the server a new certificate; are the clocks of both machines right?", Public: true}
	}
	return nil
}

// each calls fn for an error and those that it wraps, until fn returns false for a
// branch.
func each(err error, fn func(error) bool) {
	if err == nil || !fn(err) {
		return
	}
	switch of := err.(type) {
	case interface{ Unwrap() error }:
		each(of.Unwrap(), fn)
	case interface{ Unwrap() []error }:
		for _, one := range of.Unwrap() {
			each(one, fn)
		}
	}
}

// Line puts the text of an error on one line. A driver that tried several hosts
// writes a line for each. No line appears twice.
func Line(text string) string {
	var lines []string
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
