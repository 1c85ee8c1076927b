package open

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// AddAdmin adds --admin to a verb that can ask a running process.
func AddAdmin(cmd *cobra.Command, address *string) {
	cmd.Flags().StringVar(address, "admin", "", "ask the running process with this admin server, an `ADDRESS` or URL; needs --config with admin.auth")
	term.CompleteValues(cmd, "admin")
}

// CheckAdmin checks the combination of --admin with --config.
func CheckAdmin(address, file string, p *term.Problems) {
	if address != "" && file == "" {
		p.Addf("--config FILE is missing: --admin needs the names in it, and its admin.auth")
	}
}

// NoStore selects no store as a needed part of a configuration: another process has them.
func NoStore(*config.File) (store string, only bool) { return "", true }

// Admin returns a client for the admin server at an address or URL, with the credentials
// of a configuration, which may be nil. Without an address it is that of the
// configuration; then the configuration must not say that there is no server.
func Admin(address string, conf *config.File, p *term.Problems) *admin.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	var auth *config.Auth
	scheme, listen := "http://", admin.DefaultAddress
	if conf != nil {
		auth = conf.Admin.Auth
		if conf.Admin.Listen != "" {
			listen = conf.Admin.Listen
		}
		secure, err := conf.Admin.TLS.Config()
		if err != nil {
			p.Addf("%s: admin: %s", conf.Name, err)
			return nil
		}
		if secure != nil {
			scheme = "https://"
			transport = &http.Transport{TLSClientConfig: sameCertificate(secure)}
		}
	}
	if address == "" {
		address = listen
	}
	if !strings.Contains(address, "://") {
		address = scheme + address
	}
	at, err := url.Parse(address)
	switch {
	case err != nil, at.Scheme != "http" && at.Scheme != "https", at.Host == "", at.RawQuery != "", at.Fragment != "":
		p.Addf("--admin: write HOST:PORT or http://HOST:PORT")
		return nil
	case at.User != nil:
		p.Addf("--admin: credentials do not belong on a command line: name the FILE with admin.auth")
		return nil
	}
	if host, port, err := net.SplitHostPort(at.Host); err == nil {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			at.Host = net.JoinHostPort("127.0.0.1", port)
		}
	}
	at.Path = strings.TrimSuffix(at.Path, "/")
	return admin.NewClient(at.String(), transport, func(request *http.Request) {
		switch {
		case auth == nil:
		case !auth.Token.IsZero():
			request.Header.Set("Authorization", "Bearer "+auth.Token.Reveal())
		default:
			request.SetBasicAuth(auth.Username, auth.Password.Reveal())
		}
	})
}

// CheckProcess asks the process with the admin server at an address what it runs. It
// returns an error if that is no pipeline of the configuration: the process then knows
// nothing of the keys and parked messages of these pipelines. It does nothing without an
// address.
func CheckProcess(ctx context.Context, address string, conf *config.File) error {
	if address == "" {
		return nil
	}
	var wrong term.Problems
	process := Admin(address, conf, &wrong)
	if err := wrong.Err(); err != nil {
		return err
	}
	defer process.Close()
	now := &admin.Status{}
	if err := process.Get(ctx, admin.StatusPath, now); err != nil {
		return err
	}
	return Another(process, now, conf)
}

// Another returns an error if the process with a status runs no pipeline of the
// configuration.
func Another(process *admin.Client, now *admin.Status, conf *config.File) error {
	if len(conf.Pipelines) == 0 || len(now.Pipelines) == 0 {
		return nil
	}
	var runs []string
	for i := range now.Pipelines {
		if _, ok := conf.Pipeline(now.Pipelines[i].Name); ok {
			return nil
		}
		runs = append(runs, now.Pipelines[i].Name)
	}
	return fmt.Errorf("the process at %s runs pipeline %s, not %s of %s: write --admin ADDRESS",
		strings.TrimPrefix(process.Name(), "http://"), strings.Join(runs, ", "), strings.Join(conf.PipelineNames(), ", "), conf.Name)
}

// Parked opens the parked messages of a pipeline: through the admin server at an address,
// or without one where they are. It reports whether there may be any.
func Parked(ctx context.Context, address string, conf *config.File, p *config.Pipeline) (pipeline.DeadLetters, bool, error) {
	if address == "" {
		return app.ExistingDeadLetters(ctx, conf, p)
	}
	var wrong term.Problems
	client := Admin(address, conf, &wrong)
	if err := wrong.Err(); err != nil {
		return nil, false, err
	}
	return client.Parked(p.Name), true, nil
}

// Holder returns a client for the process that has an embedded store of a configuration
// open and answers for it, or nil.
func Holder(ctx context.Context, conf *config.File) *admin.Client {
	for _, s := range conf.Stores {
		if dir := s.Spec.About().Directory; dir != "" {
			if client, err := admin.Dial(ctx, dir); err == nil {
				return client
			}
		}
	}
	return nil
}

// Waits returns why a pipeline does not work now, and when it tries again, as the process that
// runs it says. That is the one that has an embedded store open, or the admin server of the file.
// It returns "" if the pipeline works, or if no process answers.
func Waits(ctx context.Context, conf *config.File, pipeline string) (why string, next, now time.Time) {
	status, err := StatusOf(ctx, conf, "")
	if err != nil {
		return "", next, now
	}
	for i := range status.Pipelines {
		if p := &status.Pipelines[i]; p.Name == pipeline && p.State != admin.StateReady {
			return fmt.Sprintf("%s is %s: %s", p.Name, p.State, cmp.Or(p.Reason, "semel status says more")), p.NextAttempt, status.Time
		}
	}
	return "", next, now
}

// StatusOf asks the process that runs a configuration for its status. With an address, that is
// the process with the admin server there. Without one, it is the process that has an embedded
// store open, or the admin server of the file. StatusOf blocks until that process answers.
func StatusOf(ctx context.Context, conf *config.File, address string) (*admin.Status, error) {
	now := &admin.Status{}
	if address == "" {
		if holder := Holder(ctx, conf); holder != nil {
			defer holder.Close()
			return now, holder.Get(ctx, admin.StatusPath, now)
		}
		if conf.Admin.Listen == admin.Off {
			return nil, errors.New("the file has no admin server")
		}
	}
	var wrong term.Problems
	client := Admin(address, conf, &wrong)
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	if err := client.Get(ctx, admin.StatusPath, now); err != nil {
		return nil, err
	}
	return now, Another(client, now, conf)
}

// sameCertificate returns a configuration for a client that accepts the certificate of
// a server's configuration, for any name of the host, and no other.
func sameCertificate(server *tls.Config) *tls.Config {
	own := server.Certificates[0]
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		Certificates:       []tls.Certificate{own},
		InsecureSkipVerify: true, // VerifyConnection is stricter
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, own.Certificate[0]) {
				return errors.New("tls: the server has another certificate than admin.tls")
			}
			return nil
		},
	}
}
