package doctorcmd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// The costs of problems with the section "serve".
const (
	unstarted   = "semel serve does not start"
	unconnected = "clients cannot connect"
)

// examineServe checks what semel serve needs besides its store: its certificate, the place
// where it listens, and the credentials of its callers. A server that listens there gets one
// GET request without credentials. It blocks for at most the patience.
func examineServe(ctx context.Context, f *config.File, patience time.Duration) *config.Examination {
	x, s := &config.Examination{File: f, Serve: f.Serve}, f.Serve
	secure, err := s.TLS.Config()
	switch {
	case err != nil:
		x.Note(doctor.Broken, "serve.tls", f.Redact(err.Error()), unstarted, "correct the files")
	case secure != nil:
		x.Certificate("serve.tls", secure.Certificates[0].Leaf, unconnected)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.Socket != "" {
		examineSocket(ctx, x, s)
	} else if err == nil {
		examineListen(ctx, x, s, secure)
	}
	examineCallers(x, s, time.Now())
	return x
}

// examineListen checks whether the server can listen at its address, or does.
func examineListen(ctx context.Context, x *config.Examination, s *config.Serve, secure *tls.Config) {
	const subject = "serve.listen"
	address := s.Address()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		_ = listener.Close() // no client has connected
		x.Note(doctor.Fine, subject, address+" is free", "", "")
	case !errors.Is(err, syscall.EADDRINUSE):
		x.Note(doctor.Broken, subject, err.Error(), unstarted, "write an address of this machine that this user may listen at")
	default:
		examineListener(ctx, x, s, "tcp", address, subject, secure)
	}
}

// examineSocket checks whether the server can make its socket, or has it.
func examineSocket(ctx context.Context, x *config.Examination, s *config.Serve) {
	const subject = "serve.socket"
	info, err := os.Stat(s.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		dir := filepath.Dir(s.Socket)
		if _, err := os.Stat(dir); err != nil {
			x.Note(doctor.Broken, subject, dir+": "+term.FileReason(err), unstarted, "create the directory, or use another path")
			return
		}
		x.Directory(subject, dir, unstarted)
	case err != nil:
		x.Note(doctor.Broken, subject, s.Socket+": "+term.FileReason(err), unstarted, "give the program access, or use another path")
	case info.Mode()&fs.ModeSocket == 0:
		x.Note(doctor.Broken, subject, s.Socket+" is not a socket", unstarted, "use another path")
	default:
		examineListener(ctx, x, s, "unix", s.Socket, subject, nil)
	}
}

// examineListener checks that the program which listens is semel serve.
func examineListener(ctx context.Context, x *config.Examination, s *config.Serve, network, address, subject string, secure *tls.Config) {
	err := asksServe(ctx, network, address, secure)
	switch {
	case err == nil:
		x.Note(doctor.Fine, subject, "semel serve answers at "+s.Address(), "", "")
	case network == "unix" && errors.Is(err, syscall.ECONNREFUSED):
		x.Note(doctor.Fine, subject, address+" is left of a server that has ended: the next one replaces it", "", "")
	case errors.Is(err, fs.ErrPermission):
		x.Note(doctor.Notice, subject, err.Error(), "clients of this user cannot connect", "run them as a user in the group of the socket")
	default:
		x.Note(doctor.Broken, subject, fmt.Sprintf("another program listens at %s: %s", s.Address(), x.File.Redact(term.InOneLine(err).Error())), unstarted, "end that program, or write another address")
	}
}

// asksServe asks the program that listens at an address whether it is semel serve. With TLS it
// is, if it shows the certificate of the file: it may refuse doctor, which has none.
func asksServe(ctx context.Context, network, address string, secure *tls.Config) error {
	shown := false
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	scheme := "http"
	if secure != nil {
		scheme = "https"
		transport.TLSClientConfig = &tls.Config{
			InsecureSkipVerify: true, //nolint:gosec // the certificate is compared below, and no credentials are sent
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
				if shown = len(raw) > 0 && string(raw[0]) == string(secure.Certificates[0].Certificate[0]); !shown {
					return errors.New("it shows another certificate than serve.tls has")
				}
				return nil
			},
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://localhost/v1/limits", nil)
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "semel-doctor")
	answer, err := transport.RoundTrip(r)
	switch {
	case shown:
		if err == nil {
			_ = answer.Body.Close() // the certificate says enough
		}
		return nil
	case err != nil:
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was read, or is not needed
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if ours := strings.Contains(string(text), `"durable_claims"`) || strings.Contains(answer.Header.Get("WWW-Authenticate"), `realm="semel"`); !ours {
		return cmp.Or(err, fmt.Errorf("GET /v1/limits gets %s", answer.Status))
	}
	return nil
}

// examineCallers checks that the callers have credentials, and that these last.
func examineCallers(x *config.Examination, s *config.Serve, now time.Time) {
	const subject = "serve.callers"
	switch {
	case len(s.Callers) > 0:
	case s.Exposed():
		x.Note(doctor.Broken, subject, "none, and other machines can reach "+s.Address(), unstarted+" without --insecure-no-auth, and with it everybody can claim, complete and remove keys", "write serve.callers, or listen on 127.0.0.1")
	case s.Socket != "":
		x.Note(doctor.Fine, subject, "none: the user and the group of the socket are operators", "", "")
	default:
		x.Note(doctor.Notice, subject, "none: every program of this machine is an operator", "each user of this machine can claim, complete and remove keys", "write serve.callers, or use serve.socket")
	}
	for _, c := range s.Callers {
		subject, until := subject+"."+c.Name, "until "+c.Expires.Format(time.DateOnly)
		found := fmt.Sprintf("%s of %s", c.Role, strings.Join(c.Scopes, ", "))
		const remedy = "give it new credentials and a later day in serve.callers, and send SIGHUP to the server"
		switch left := c.Expires.Sub(now); {
		case c.Expires.IsZero():
			x.Note(doctor.Fine, subject, found, "", "")
		case left <= 0:
			x.Note(doctor.Broken, subject, found+", "+until, "its requests get 401 /unauthenticated", remedy)
		case left < config.Soon:
			x.Note(doctor.Warning, subject, found+", "+until, "from then on its requests get 401 /unauthenticated", remedy)
		default:
			x.Note(doctor.Fine, subject, found+", "+until, "", "")
		}
	}
}
