// Package verifycmd is the verb verify.
package verifycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/idemcheck"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/schema"
)

// New returns the verb verify.
func New(a *term.App) *cobra.Command {
	cmd := term.Group(a, &cobra.Command{
		Use:   "verify VERB",
		Short: "Check an implementation of the Idempotency-Key header from outside",
		Example: `semel verify upstream --listen 127.0.0.1:9000
semel verify http --target http://127.0.0.1:8080 --probe http://127.0.0.1:9000`,
	})
	cmd.AddCommand(newHTTP(a), newUpstream(a))
	return cmd
}

// httpFlags are the flags of verify http.
type httpFlags struct {
	*term.App
	opts             idemcheck.Options
	targets          []string
	probe, profile   string
	keyHeader        string
	marker           string
	callers, another []string
	all              bool
}

func newHTTP(a *term.App) *cobra.Command {
	f := &httpFlags{App: a}
	cmd := &cobra.Command{
		Use:   "http --target URL --probe URL",
		Short: "Check a proxy, or an API behind a middleware, item by item",
		Example: `semel verify http --target http://127.0.0.1:8080 --probe http://127.0.0.1:9000
semel verify http --target http://127.0.0.1:8080 --probe http://127.0.0.1:9000 --as 'X-Api-Key: ${env:ALICE}' --other 'X-Api-Key: ${env:BOB}'
semel verify http --target http://127.0.0.1:8080 --probe http://127.0.0.1:9000 --max-body 1MiB --max-response 1MiB --json`,
		Long: `Sends requests to an implementation of the Idempotency-Key header, in any language, and
asks the service behind it how often each one took effect. The service is semel verify
upstream: start it first, and let the implementation forward all paths to it.

Each item has one of four results. "failed" is a demanded item that is not met: a rule of
the IETF draft, security, or a request that took effect twice. "differs" is an item of
practice that is not met. "n/a" is an item that cannot be checked from outside, or that
needs a flag which names a setting of the target.

The exit status is 3 if a demanded item failed; with --all also if one differs.`,
		Args: term.NoArguments,
		RunE: a.Checked(func(cmd *cobra.Command, _ []string, wrong term.Problems) error {
			f.complete(&wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return f.run(cmd.Context())
		}),
	}
	flags, o := cmd.Flags(), &f.opts
	flags.StringArrayVar(&f.targets, "target", nil, "`URL` of the implementation; repeat it for processes that share their keys")
	flags.StringVar(&f.probe, "probe", "", "`URL` of semel verify upstream, not through the implementation")
	flags.StringArrayVar(&f.callers, "as", nil, "header `LINE` that identifies the caller, as in 'Authorization: Bearer ${env:TOKEN}'; repeat it for more")
	flags.StringArrayVar(&f.another, "other", nil, "header `LINE` that identifies another caller")
	flags.StringVar(&f.profile, "profile", "ietf", "`NAME` of the dialect: "+strings.Join(profileNames(), ", "))
	flags.StringVar(&f.keyHeader, "header", "", "`NAME` of the header with the key (default that of the profile)")
	flags.StringVar(&f.marker, "marker", "", "`NAME` of the header of replayed answers (default that of the profile)")
	flags.StringVar(&o.Ignored, "ignored", "", "`NAME` of a member of a JSON body that the target ignores when it compares requests")
	term.AddParsed(flags, &o.MaxBody, "max-body", "", "SIZE", "the longest request body that the target takes", schema.ParseSize)
	term.AddParsed(flags, &o.MaxResponse, "max-response", "", "SIZE", "the longest answer that the target keeps", schema.ParseSize)
	for _, d := range []struct {
		target      *time.Duration
		name, usage string
	}{
		{&o.Timeout, "upstream-timeout", "how long the target waits for the service, at most 10s"},
		{&o.Lease, "lease", "how long a claim of the target lasts, at most 10s"},
		{&o.Wait, "wait", "how long the target lets a repetition wait for the first answer"},
		{&o.Window, "window", "how long the target keeps answers, at most 10s"},
	} {
		term.AddParsed(flags, d.target, d.name, "", "DUR", d.usage, schema.ParseDuration)
	}
	flags.BoolVar(&f.all, "all", false, "find fault also with items that differ")
	for _, name := range []string{"target", "probe", "as", "other", "header", "marker", "ignored"} {
		term.CompleteValues(cmd, name)
	}
	term.CompleteValues(cmd, "profile", profileNames()...)
	return cmd
}

// profileNames returns the names of the dialects.
func profileNames() (names []string) {
	for _, p := range httpidem.Profiles() {
		names = append(names, p.Name)
	}
	return names
}

// complete turns the flags into options.
func (f *httpFlags) complete(wrong *term.Problems) {
	for _, text := range f.targets {
		f.opts.Targets = append(f.opts.Targets, address("--target", text, wrong))
	}
	if len(f.targets) == 0 {
		wrong.Addf("--target URL is missing: name the implementation, as in --target http://127.0.0.1:8080")
	}
	if f.probe == "" {
		wrong.Addf("--probe URL is missing: start semel verify upstream, and name it, as in --probe http://127.0.0.1:9000")
	} else {
		f.opts.Probe = address("--probe", f.probe, wrong)
	}
	f.opts.Caller = f.header("--as", f.callers, wrong)
	f.opts.Other = f.header("--other", f.another, wrong)
	if f.another != nil && f.callers == nil {
		wrong.Addf("--other is the second caller: name the first one with --as")
	}
	profile, ok := httpidem.ProfileNamed(f.profile)
	if !ok {
		wrong.Addf("--profile %s: there is no such profile: %s", f.profile, schema.OneOf(f.profile, profileNames()))
		return
	}
	if f.keyHeader != "" {
		profile.Headers = []string{f.keyHeader}
	}
	if len(profile.Headers) == 0 {
		wrong.Addf("--profile %s: its key is in the body, and the checks send it in a header: name a header that the target takes with --header", f.profile)
	}
	profile.Marker = cmp.Or(f.marker, profile.Marker)
	f.opts.Profile = profile
}

// address parses a URL.
func address(flag, text string, wrong *term.Problems) *url.URL {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		wrong.Addf("%s %s: expected a URL with http or https and a host, as in http://127.0.0.1:8080", flag, text)
	}
	return u
}

// variable is a reference to a variable of the environment.
var variable = regexp.MustCompile(`\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}`)

// header parses header lines, and replaces variables in their values.
func (f *httpFlags) header(flag string, lines []string, wrong *term.Problems) http.Header {
	if lines == nil {
		return nil
	}
	h := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		value = variable.ReplaceAllStringFunc(strings.TrimSpace(value), func(reference string) string {
			name := variable.FindStringSubmatch(reference)[1]
			text := f.Env(name)
			if text == "" {
				wrong.Addf("%s: the variable %s is not set", flag, name)
			}
			return text
		})
		if !ok || name == "" || strings.ContainsAny(name, " \t") || strings.ContainsFunc(line+value, unicode.IsControl) {
			wrong.Addf("%s: expected a header line, as in 'Authorization: Bearer ${env:TOKEN}'", flag)
			continue
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		h[name] = append(h[name], value)
	}
	return h
}

// run checks the target, and prints each item when it is done.
func (f *httpFlags) run(ctx context.Context) error {
	var broken error
	f.opts.Done = func(item idemcheck.Item) {
		if err := f.print(item); err != nil && broken == nil {
			broken = err
		}
	}
	report, err := idemcheck.Run(ctx, f.opts)
	if err = errors.Join(err, broken); err != nil {
		return err
	}
	counts := map[idemcheck.Result]int{}
	for _, item := range report.Items {
		counts[item.Result]++
	}
	f.Note("%d passed  %d failed  %d differ  %d n/a", counts[idemcheck.Passed], counts[idemcheck.Failed], counts[idemcheck.Differs], counts[idemcheck.NotApplicable])
	if len(report.Missed(f.all)) > 0 {
		return term.ErrFound
	}
	return nil
}

// print prints an item as a line of a table, or of JSON. What was seen comes from the
// target, which may be any.
func (f *httpFlags) print(item idemcheck.Item) error {
	if f.JSON {
		return f.PrintJSON(item)
	}
	text := fmt.Sprintf("%2d  %-7s  %-8s  %s", item.Number, item.Result, item.Source, item.Name)
	if item.Seen != "" {
		text += ": " + item.Seen
	}
	_, err := fmt.Fprintln(f.Stdout, term.OneLine(text))
	return err
}

func newUpstream(a *term.App) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "upstream",
		Short: "Run the service that counts requests for verify http",
		Example: `semel verify upstream
semel verify upstream --listen 127.0.0.1:9000`,
		Long: `Serves HTTP until a signal ends it. It counts how often each check of semel verify http
took effect, and misbehaves as the check asks: it resets connections, sends wrong lengths,
and answers late. It has no protection: let only the implementation and verify http reach
it.`,
		Args: term.NoArguments,
		RunE: a.Plain(func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), a, listen) }),
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9000", "`ADDRESS` of the service")
	term.CompleteValues(cmd, "listen")
	return cmd
}

// serve runs an upstream until ctx ends.
func serve(ctx context.Context, a *term.App, listen string) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return term.Usagef("--listen %s: %v", listen, err)
	}
	a.Note("the service listens on http://%s", listener.Addr())
	server := &http.Server{Handler: idemcheck.NewUpstream(), ReadHeaderTimeout: 10 * time.Second}
	// Nothing is worth waiting for: an answer may have no end.
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listen, err)
	}
	return nil
}
