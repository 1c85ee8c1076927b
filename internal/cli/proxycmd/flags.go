package proxycmd

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// flags are the flags of the verb. Those in proxy describe a proxy without a FILE.
type flags struct {
	*term.App
	open.DaemonFlags
	proxy                       config.Proxy
	store, storeFile, storeName string
}

// ofFile are the flags that are accepted with a FILE.
func ofFile() []string {
	return []string{"admin", "insecure-no-auth", "log-format", "log-level", "env-file", "json", "quiet", "no-color", "no-progress", "help"}
}

func (f *flags) add(cmd *cobra.Command) {
	set, p := cmd.Flags(), &f.proxy
	checked := func(target *string, name, initial, kind, usage string, parse func(string) (string, error)) {
		term.AddParsed(set, target, name, initial, kind, usage, parse)
	}
	checked(&p.Listen, "listen", "127.0.0.1:8080", "ADDRESS", "address of the proxy", schema.ParseListen)
	checked(&p.Upstream, "upstream", "", "URL", "URL of the service", config.ParseUpstream)
	term.AddParsed(set, &p.Caller, "scope", "", "SCOPE", "who the caller is: header:NAME, jwt:CLAIM, basic or global", config.ParseCaller)
	set.StringVar(&p.Identity.JWTKeys, "jwt-keys", "", "`FILE` or URL of the JWK set whose keys sign tokens, for --scope jwt:CLAIM")
	set.StringVar(&f.store, "store", "", "`DIR` of an embedded store (default memory, which forgets all keys at the end)")
	set.StringVar(&f.storeFile, "store-config", "", "configuration `FILE` that names the store")
	set.StringVar(&f.storeName, "store-name", "", "`NAME` of the store in that configuration (default the only one)")
	term.AddParsed(set, &p.Methods, "methods", "", "LIST", "methods that take a key (default POST,PATCH)", list(config.ParseMethod))
	set.BoolVar(&p.Required, "required", false, "refuse requests without a key")
	set.Var(&names{&p.Headers}, "header", "`NAME` of the header with the key; repeat it for aliases (default Idempotency-Key)")
	set.BoolVar(&p.Strict, "strict", false, "accept only keys in double quotes (RFC 9651)")
	term.WindowVar(set, &p.Window, "window", "24h", "how long an answer is kept, from its completion on")
	term.AddParsed(set, &p.Lease, "lease", "30s", "DUR", "how long a claim lasts; it is extended while the service works", schema.ParsePositive)
	checked(&p.OnLeaseExpired, "on-lease-expired", "hold", "POLICY", "after a crash in the middle: hold answers outcome-unknown, retry runs the request again", oneOf("hold", "retry"))
	term.AddParsed(set, &p.UpstreamTimeout, "upstream-timeout", "60s", "DUR", "how long a client with a key waits for the answer of the service", schema.ParsePositive)
	term.AddParsed(set, &p.MaxBody, "max-body", "1MiB", "SIZE", "the longest body of a request with a key", schema.ParseBytes)
	term.AddParsed(set, &p.MaxResponse, "max-response", "1MiB", "SIZE", "the longest body of an answer that is kept", schema.ParseBytes)
	term.AddParsed(set, &p.Wait, "wait", "0s", "DUR", "how long a repetition waits while the first request runs", schema.ParsePause)
	checked(&p.Profile, "profile", "ietf", "NAME", "the API whose rules hold: "+strings.Join(config.ProfileNames(), ", "), config.ParseProfile)
	f.AddDaemon(cmd)
	term.CompleteDirs(cmd, "store")
	term.CompleteValues(cmd, "scope", "header:", "jwt:", "basic", "global")
	term.CompleteValues(cmd, "on-lease-expired", "hold", "retry")
	for _, name := range []string{"listen", "upstream", "store-name", "methods", "header"} {
		term.CompleteValues(cmd, name)
	}
}

// config returns the configuration of the proxy: that of the FILE, or that of the flags.
// It returns nil if something is wrong.
func (f *flags) config(cmd *cobra.Command, args []string, wrong *term.Problems) *config.File {
	if len(args) > 0 {
		return f.fromFile(cmd, args[0], wrong)
	}
	conf := f.stores(wrong)
	if f.proxy.Upstream == "" && !complained(*wrong, "--upstream ") {
		wrong.Addf("--upstream URL is missing: name the service, as in --upstream http://127.0.0.1:9000, or a FILE")
	}
	switch kind := f.proxy.Caller.Kind; {
	case kind == "mtls", kind == "api-key", kind == "forward":
		wrong.Addf("--scope %s needs settings that are no flags: write the proxy into a FILE", f.proxy.Caller)
	case (kind == "jwt") != (f.proxy.Identity.JWTKeys != ""):
		wrong.Addf("--scope jwt:CLAIM and --jwt-keys belong together: write both, or put a secret into a FILE as proxy.jwt_secret")
	case f.proxy.Caller.Kind == "" && !complained(*wrong, "--scope "):
		wrong.Addf("--scope is missing: say who the caller is, as in --scope header:X-Api-Key or --scope basic; --scope global makes all callers one")
	}
	if conf == nil || len(*wrong) > 0 {
		return nil
	}
	f.proxy.Scope, f.proxy.Path = config.DefaultProxyScope, "/"
	conf.Proxy = &f.proxy
	return conf
}

func complained(p term.Problems, start string) bool {
	return slices.ContainsFunc(p, func(text string) bool { return strings.HasPrefix(text, start) })
}

// fromFile reads the proxy of a configuration.
func (f *flags) fromFile(cmd *cobra.Command, name string, wrong *term.Problems) *config.File {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if !slices.Contains(ofFile(), flag.Name) {
			wrong.Addf("--%s describes a proxy without a FILE: write it into %s, or leave the FILE out", flag.Name, name)
		}
	})
	conf := open.Config(f.App, name, wrong)
	switch {
	case conf == nil:
		return nil
	case conf.Proxy == nil:
		wrong.Addf("%s: it has no section proxy", conf.Name)
		return nil
	}
	return conf
}

// stores returns a configuration with the store of the flags.
func (f *flags) stores(wrong *term.Problems) *config.File {
	only := func(s *config.Store) *config.File {
		f.proxy.Store.Name = s.Name
		return &config.File{Stores: []*config.Store{s}}
	}
	switch {
	case f.store != "" && f.storeFile != "":
		wrong.Addf("--store and --store-config exclude each other: name the store one way")
		return nil
	case f.storeName != "" && f.storeFile == "":
		wrong.Addf("--store-config FILE is missing: name the configuration that has the store %s", f.storeName)
		return nil
	case f.storeFile != "":
		conf := open.ConfigFor(f.App, f.storeFile, open.OnlyStore(f.storeName), wrong)
		if conf == nil {
			return nil
		}
		s := open.ChooseStore(conf, f.storeName, wrong)
		if s == nil {
			return nil
		}
		f.proxy.Store.Name = s.Name
		conf.Pipelines = nil // they do not run here
		return conf
	case f.store != "":
		return only(&config.Store{Name: f.store, Spec: f.Kinds.Directory(f.store)})
	}
	return only(&config.Store{Name: "memory", Spec: f.Kinds.Memory()})
}

// list reads values with commas between them.
func list(parse func(string) (string, error)) func(string) ([]string, error) {
	return func(text string) ([]string, error) {
		var all []string
		for part := range strings.SplitSeq(text, ",") {
			value, err := parse(part)
			if err != nil {
				return nil, err
			}
			all = append(all, value)
		}
		return all, nil
	}
}

func oneOf(words ...string) func(string) (string, error) {
	return func(text string) (string, error) { return schema.ParseChoice(text, words...) }
}

// names is the value of a flag that may be repeated.
type names struct{ list *[]string }

// String implements pflag.Value. It is empty if the flag was not given.
func (n *names) String() string { return strings.Join(*n.list, ",") }

// Type implements pflag.Value.
func (n *names) Type() string { return "NAME" }

// Set implements pflag.Value.
func (n *names) Set(text string) error {
	name, err := config.ParseHeader(text)
	if err == nil {
		*n.list = append(*n.list, name)
	}
	return err
}
