// Package proxycmd has the verb proxy.
package proxycmd

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/page"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/proxy"
)

// New returns the verb proxy.
func New(a *term.App) *cobra.Command {
	f := &flags{App: a}
	cmd := &cobra.Command{
		Use:   "proxy (FILE | --upstream URL --scope SCOPE)",
		Short: "Give an HTTP service the semantics of the Idempotency-Key header",
		Example: `semel proxy --upstream http://127.0.0.1:9000 --scope header:X-Api-Key --store ./keys
semel proxy api.yaml
semel proxy api.yaml --admin off --log-level warn`,
		Long: `Passes HTTP requests on to a service, in any language. A request with the header
Idempotency-Key takes effect once: a repetition gets the first answer, with the
header Idempotent-Replayed: true. Two at a time do not both run, another body under
the same key is refused, and a request whose outcome is not known does not run again
by itself. semel keys resolve settles such a key.

--scope says who the caller is, because callers must not see each other's answers:
header:NAME, jwt:CLAIM with --jwt-keys, basic, or global, which makes all callers one.
A FILE also takes mtls, api-key:HEADER and forward:HEADER.

FILE is a configuration with a section proxy. It has routes, several services, TLS and
limits. The other flags describe a proxy without a FILE, and --store-config FILE names a
configuration whose store it uses.

SIGTERM and SIGINT drain: the proxy takes no new connection, and requests in progress
end, within 25 s or the file's shutdown time. A second signal ends the program
immediately; the outcome of requests with a key is then unknown.

The log goes to stderr. --admin serves a page for people at /, and probes, metrics and
the status: /livez, /readyz, /metrics and /status.`,
		Args: term.Arguments(0, 1, "", "one FILE"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			conf := f.config(cmd, args, &wrong)
			if conf == nil {
				return wrong.Err()
			}
			log, _ := f.Logger(a, conf, a.Stderr, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			server, err := proxy.Listen(conf, log)
			if err == nil {
				err = f.run(cmd.Context(), conf, server, &app.RunOptions{Log: log, Admin: f.Admin, InsecureNoAuth: f.Insecure, Env: f.Env,
					Page: page.For(a, strings.Join(args, ""), conf, a.Stderr)})
			}
			if errors.Is(err, semel.ErrInvalidRequest) {
				return term.Usagef("%s", err)
			}
			return err
		}),
	}
	f.add(cmd)
	return cmd
}

func (f *flags) run(ctx context.Context, conf *config.File, server *proxy.Server, opts *app.RunOptions) error {
	opts.Service = &app.Service{
		Name: "proxy", Store: conf.Proxy.Store.Name,
		Serve: server.Serve, Open: server.Open, Ready: server.Ready, Metrics: server.Metrics(),
	}
	return app.Run(ctx, conf, opts)
}
