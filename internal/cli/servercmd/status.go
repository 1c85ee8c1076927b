package servercmd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/daemon"
)

// watchEvery is how often --watch asks.
const watchEvery = 2 * time.Second

// NewStatus returns the verb status.
func NewStatus(a *term.App) *cobra.Command {
	var address string
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [FILE]",
		Short: "Show what a running program does",
		Example: `semel status pipelines.yaml
semel status --admin 127.0.0.1:4195 --json`,
		Long: `Asks the admin server of a running semel run what its pipelines and stores do. The
address is that of the FILE, or ` + daemon.DefaultAdmin + `, unless --admin names another. The
FILE also has the credentials (admin.auth) and the certificate (admin.tls).

For each pipeline it shows the state, the messages per second, the share of fresh
messages, the lag of the source, the messages in flight, the parked messages, and
the last error. For each store it shows the keys by state.

The exit status is 3 if a person is needed: a pipeline or store is not ready, messages
are parked, or the outcome of keys is unknown. It is 1 if there is no answer.`,
		Args: term.Arguments(0, 1, "", "FILE"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			var conf *config.File
			if len(args) > 0 {
				conf = open.ConfigFor(a, args[0], func(*config.File) (string, bool) { return "", true }, &wrong)
			}
			var from *adminClient
			if len(args) == 0 || conf != nil {
				from = newAdminClient(address, conf, &wrong)
			}
			if err := wrong.Err(); err != nil {
				return err
			}
			if watch {
				return from.watch(cmd.Context(), a)
			}
			now, err := from.status(cmd.Context())
			if err != nil {
				return err
			}
			if err := printStatus(a, now); err != nil {
				return err
			}
			if needsPerson(now) {
				return term.ErrFound
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&address, "admin", "", "`ADDRESS` or URL of the admin server (default that of the file, or "+daemon.DefaultAdmin+")")
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again every two seconds until a signal ends it")
	term.CompleteValues(cmd, "admin")
	return cmd
}

// adminClient asks the admin server of a running program.
type adminClient struct {
	url  string
	auth *config.Auth // nil without credentials
	http *http.Client
}

// newAdminClient returns a client for an address or URL, with the credentials of a
// configuration, which may be nil. Without an address it is that of the configuration.
func newAdminClient(address string, conf *config.File, p *term.Problems) *adminClient {
	c := &adminClient{http: &http.Client{Timeout: 15 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	scheme, listen := "http://", daemon.DefaultAdmin
	if conf != nil {
		c.auth = conf.Admin.Auth
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
			c.http.Transport = &http.Transport{TLSClientConfig: sameCertificate(secure)}
		}
	}
	if address == "" {
		address = listen
		if address == daemon.Off {
			p.Addf("%s: admin.listen is off, so a program with this configuration cannot be asked: write an address, or name it with --admin", conf.Name)
			return nil
		}
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
	at.Path = strings.TrimSuffix(at.Path, "/") + daemon.StatusPath
	c.url = at.String()
	return c
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

// status asks for the status.
func (c *adminClient) status(ctx context.Context) (*daemon.Status, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return nil, err
	}
	if c.auth != nil {
		if !c.auth.Token.IsZero() {
			request.Header.Set("Authorization", "Bearer "+c.auth.Token.Reveal())
		} else {
			request.SetBasicAuth(c.auth.Username, c.auth.Password.Reveal())
		}
	}
	response, err := c.http.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var of *url.Error
		if errors.As(err, &of) {
			err = of.Err
		}
		return nil, fmt.Errorf("%s does not answer: %w: does semel run work, with this address in --admin or in its configuration?", c.url, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%s refuses the credentials: name the FILE with its admin.auth, and set the variables that it refers to", c.url)
	case http.StatusMisdirectedRequest:
		return nil, fmt.Errorf("%s refuses this host: name the server's address, or set admin.public_url in its configuration to the URL that you use", c.url)
	default:
		return nil, fmt.Errorf("%s answers %s: is this the admin server of semel run, of this version?", c.url, response.Status)
	}
	now := &daemon.Status{}
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err == nil {
		err = json.Unmarshal(text, now)
	}
	if err != nil {
		return nil, fmt.Errorf("%s gives no status: %w: is this the admin server of semel run, of this version?", c.url, err)
	}
	return now, nil
}

// watch shows the status again and again until ctx ends.
func (c *adminClient) watch(ctx context.Context, a *term.App) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		now, err := c.status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.Note("%s", err)
		default:
			if err := c.show(a, now); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// show prints a status below a line with its time. On a terminal it replaces the one
// before.
func (c *adminClient) show(a *term.App, now *daemon.Status) error {
	if !a.JSON {
		start := "\n"
		if a.OnTerminal() {
			start = "\x1b[H\x1b[2J"
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s%s  %s\n", start, term.DisplayTime(now.Time), c.url); err != nil {
			return err
		}
	}
	return printStatus(a, now)
}

// needsPerson reports whether a person must look at something.
func needsPerson(now *daemon.Status) bool {
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		if p.State != daemon.StateReady && p.State != daemon.StateEnded || p.Waiting != nil && *p.Waiting > 0 {
			return true
		}
	}
	for i := range now.Stores {
		s := &now.Stores[i]
		if s.State != daemon.StateReady || s.Unknown != nil && *s.Unknown > 0 {
			return true
		}
	}
	return false
}

// printStatus prints a status as tables, or as a line of JSON for each pipeline and
// store.
func printStatus(a *term.App, now *daemon.Status) error {
	if a.JSON {
		for i := range now.Pipelines {
			if err := a.PrintJSON(&now.Pipelines[i]); err != nil {
				return err
			}
		}
		for i := range now.Stores {
			if err := a.PrintJSON(&now.Stores[i]); err != nil {
				return err
			}
		}
		return nil
	}
	var out bytes.Buffer
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PIPELINE\tSTATE\tRATE\tFRESH\tLAG\tIN FLIGHT\tPARKED\tLAST SETTLED")
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		fmt.Fprintf(table, "%s\t%s\t%s/s\t%s\t%s\t%s\t%s\t%s\n", p.Name, p.State, term.FormatRate(p.Rate), share(p), lag(p.Lag, p.LagBytes),
			term.FormatCount(int64(p.InFlight)), count(p.Waiting), ago(now.Time, p.LastSettled))
	}
	if len(now.Stores) > 0 {
		fmt.Fprintln(table, "\nSTORE\tSTATE\tDONE\tCLAIMED\tUNKNOWN\tMEASURED")
		for i := range now.Stores {
			s := &now.Stores[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.State, count(s.Done), count(s.Claimed), count(s.Unknown), ago(now.Time, s.Measured))
		}
	}
	_ = table.Flush() // to memory
	printDetails(&out, now)
	_, err := a.Stdout.Write(out.Bytes())
	return err
}

// printDetails prints what has no place in the tables: reasons, errors, and the lag of
// partitions.
func printDetails(out *bytes.Buffer, now *daemon.Status) {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, term.OneLine(fmt.Sprintf(format, args...)))
	}
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		if p.Reason != "" {
			add("%s is not ready: %s", p.Name, p.Reason)
		}
		if e := p.LastError; e != nil {
			text := e.Event
			if e.Cause != "" {
				text += ": " + e.Cause
			}
			add("%s failed last %s: %s: the log has the error", p.Name, ago(now.Time, e.At), text)
		}
		for _, at := range p.Lags {
			if len(p.Lags) > 1 && (at.Messages != nil && *at.Messages > 0 || at.Bytes != nil && *at.Bytes > 0) {
				add("%s: %s/%d has lag %s", p.Name, at.Source, at.Partition, lag(at.Messages, at.Bytes))
			}
		}
	}
	for i := range now.Stores {
		if s := &now.Stores[i]; s.Reason != "" {
			add("store %s is not ready: %s", s.Name, s.Reason)
		}
	}
	if len(lines) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.Join(lines, "\n"))
	}
}

// share formats the share of fresh messages.
func share(p *daemon.PipelineStatus) string {
	if p.Fresh+p.Duplicate == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(p.Fresh)/float64(p.Fresh+p.Duplicate))
}

// count formats a count that may not be known.
func count(n *int64) string {
	if n == nil {
		return "-"
	}
	return term.FormatCount(*n)
}

// lag formats a lag in messages or bytes.
func lag(messages, size *int64) string {
	if messages == nil && size != nil {
		return term.FormatBytes(*size)
	}
	return count(messages)
}

// ago formats how long ago something was.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return term.FormatElapsed(max(now.Sub(then), 0)) + " ago"
}
