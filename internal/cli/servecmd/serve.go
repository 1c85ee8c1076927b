// Package servecmd has the verb serve.
package servecmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem/caller"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/page"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/listen"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/serve"
)

// flags are the flags of the verb.
type flags struct {
	*term.App
	open.DaemonFlags
	listen, socket, store string
	file                  string // the FILE, or empty
	origins               bool   // the store keeps where claims come from, whatever it says
}

// defaultStore is the directory of the store without a FILE.
const defaultStore = "./semel-serve"

// New returns the verb serve.
func New(a *term.App) *cobra.Command {
	f := &flags{App: a}
	cmd := &cobra.Command{
		Use:   "serve [FILE] [--listen ADDRESS | --socket PATH] [--store DIR]",
		Short: "Serve a store over HTTP, for programs in any language",
		Example: `semel serve
semel serve --socket ./semel.sock --store ./keys
semel serve api.yaml --listen 127.0.0.1:4196`,
		Long: `Serves the contract of a store over HTTP, with JSON: claim, complete, release, extend,
batch, lookup, list, resolve and remove below /v1/. GET /v1/openapi.json describes them.

A call claims a key, takes its effect, and completes the key. A call that comes again
with the key gets the first result. A claim that is sent again with its claim_id gets
the same token, so a lost answer costs nothing. Claims outlive a restart.

The keys are in an embedded store, or in the store that the section serve of FILE
names. Without that section, the only store of FILE is used. An address that other
machines can reach needs callers with bearer tokens or certificates in FILE. SIGHUP
reads the callers again.

SIGTERM and SIGINT drain: new claims get 503 /draining, and completions are served
until no claim lives, for 25 s or the file's shutdown time at most.

The log goes to stderr, and begins with the promise. --admin serves probes, metrics and
the status: /livez, /readyz, /metrics and /status.`,
		Args: term.Arguments(0, 1, "", "one FILE"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			f.file = strings.Join(args, "")
			conf := f.config(&wrong)
			if conf == nil {
				return wrong.Err()
			}
			log, _ := f.Logger(a, conf, a.Stderr, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			err := f.run(cmd.Context(), conf, log)
			if errors.Is(err, semel.ErrInvalidRequest) {
				return term.Usagef("%s", err)
			}
			return err
		}),
	}
	set := cmd.Flags()
	term.AddParsed(set, &f.listen, "listen", "", "ADDRESS", "address of the server (default the one in the file, or "+config.DefaultServeListen+")", schema.ParseListen)
	set.StringVar(&f.socket, "socket", "", "unix socket `PATH` to listen on instead")
	set.StringVar(&f.store, "store", "", "`DIR` of an embedded store, without a FILE (default "+defaultStore+")")
	f.AddDaemon(cmd)
	term.CompleteDirs(cmd, "store")
	for _, name := range []string{"listen", "socket"} {
		term.CompleteValues(cmd, name)
	}
	return cmd
}

// config returns the configuration with a section serve. It returns nil if something is
// wrong.
func (f *flags) config(wrong *term.Problems) *config.File {
	if f.listen != "" && f.socket != "" {
		wrong.Addf("--listen and --socket exclude each other: name one place")
	}
	var conf *config.File
	if f.file != "" {
		if f.store != "" {
			wrong.Addf("--store is for a server without a FILE: name the store in %s", f.file)
		}
		conf = open.Config(f.App, f.file, wrong)
	} else {
		dir := f.store
		if dir == "" {
			dir = defaultStore
		}
		conf = &config.File{Stores: []*config.Store{{Name: dir, Spec: f.Kinds.Directory(dir)}}}
		f.origins = true
	}
	if conf == nil {
		return nil
	}
	if conf.Serve == nil {
		if len(conf.Stores) != 1 {
			wrong.Addf("%s: it has no section serve that names one of its stores: write serve: { store: %s }", conf.Name, conf.StoreNames()[0])
			return nil
		}
		conf.Serve = &config.Serve{Store: schema.Reference{Name: conf.Stores[0].Name}}
	}
	switch s := conf.Serve; {
	case f.listen != "":
		s.Listen, s.Socket = f.listen, ""
	case f.socket != "":
		s.Listen, s.Socket = "", f.socket
	}
	if conf.Serve.Exposed() && len(conf.Serve.Callers) == 0 && !f.Insecure {
		wrong.Addf("serve: other machines can reach %s, and no caller needs credentials: write serve.callers into a FILE, listen on 127.0.0.1, or pass --insecure-no-auth", conf.Serve.Address())
	}
	if len(*wrong) > 0 {
		return nil
	}
	return conf
}

// ballast is how much memory the garbage collector counts in addition to that of the server,
// unless GOGC or GOMEMLIMIT is set. No code writes to it, so it takes no memory of the machine.
// Without it, the memory of a server with few keys is collected after each 4 MiB of new objects,
// which is 1,000 requests. That took a quarter of the processor time.
const ballast = 32 << 20

func (f *flags) run(ctx context.Context, conf *config.File, log *slog.Logger) error {
	if f.Env("GOGC") == "" && f.Env("GOMEMLIMIT") == "" {
		defer runtime.KeepAlive(make([]byte, ballast))
	}
	s := conf.Serve
	secure, err := listen.Certificates(s.TLS, log)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	listener, err := listenAt(s)
	if err != nil {
		return err
	}
	opts := serve.Options{
		Listener: listener, TLS: secure, Log: log, Callers: callersOf(s), CertificateName: caller.MTLS(),
		Lease: s.Lease, Window: s.Window, Hold: s.Holds(), KeepOrigin: true,
		MaxBody: s.MaxBody, MaxResult: s.MaxResult, MaxBatch: s.MaxBatch, MaxID: s.MaxID, MaxMemory: s.MaxMemory,
		MaxConnections: s.MaxConnections, MaxWaiters: s.MaxWaiters, MaxKeysPerCaller: s.KeysPerCaller, BodyTimeout: s.BodyTimeout,
		Drain: conf.Shutdown, Redact: conf.Redact,
	}
	if s.Socket == "" {
		opts.Host = listen.Hosts(s.Address(), "")
	}
	if d := conf.Decider(s.Store.Name); d != nil {
		opts.KeepOrigin = f.origins || d.Spec.About().Origins
	}
	server := serve.New(opts)
	address := "unix:" + s.Socket
	if s.Socket == "" {
		address = "http://" + listener.Addr().String()
		if secure != nil {
			address = "https://" + listener.Addr().String()
		}
	}
	defer f.reread(ctx, server, log)()
	return app.Run(ctx, conf, &app.RunOptions{Log: log, Admin: f.Admin, InsecureNoAuth: f.Insecure, Env: f.Env, Page: page.For(f.App, f.file, conf, f.Stderr), Service: &app.Service{
		Name: "serve", Store: s.Store.Name, Serve: server.Serve, Ready: server.Ready, Metrics: server.Metrics(),
		Open: func(store semel.Store, observer semel.Observer) error {
			if err := server.Open(store, observer); err != nil {
				return err
			}
			sayPromise(log, explain.Served(conf))
			log.Info("serve", "address", address, "store", s.Store.Name, "callers", len(s.Callers))
			return nil
		},
	}})
}

// sayPromise logs what the server promises.
func sayPromise(log *slog.Logger, p *explain.Promise) {
	log.Info("promise", "nothing_lost", p.NothingLost.Holds, "no_second_effect", p.NoSecondEffect.Holds, "because", strings.Join(p.NoSecondEffect.Because, "; "),
		"keys", p.Keys, "window", p.Window, "exceptions", strings.Join(p.Exceptions, "; "))
}

// listenAt listens where the section says.
func listenAt(s *config.Serve) (net.Listener, error) {
	if s.Socket != "" {
		listener, err := listen.Socket(s.Socket)
		if err != nil {
			return nil, fmt.Errorf("serve: %w: write another path with --socket", err)
		}
		return listener, nil
	}
	listener, err := net.Listen("tcp", s.Address())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("serve: %w: write another address with --listen", err)
	case err != nil:
		return nil, fmt.Errorf("serve: %w", err)
	}
	return listener, nil
}

// callersOf returns the callers of a configuration, which was checked.
func callersOf(s *config.Serve) (list []*serve.Caller) {
	for _, c := range s.Callers {
		made := &serve.Caller{Name: c.Name, Certificate: c.Certificate, Role: serve.Role(c.Role), Scopes: c.Scopes, Expires: c.Expires}
		for _, text := range c.Tokens {
			var digest [sha256.Size]byte
			if _, err := hex.Decode(digest[:], []byte(text)); err == nil {
				made.Tokens = append(made.Tokens, digest)
			}
		}
		list = append(list, made)
	}
	return list
}

// reread reads the callers again at each SIGHUP, until ctx ends. If the file is wrong, or
// no longer has callers, the old ones stay. The caller must call the function that it
// returns.
func (f *flags) reread(ctx context.Context, server *serve.Server, log *slog.Logger) (wait func()) {
	if f.file == "" {
		return func() {}
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-again:
			}
			var wrong term.Problems
			app := *f.App // open.Config writes to it, and the verb reads it
			conf := open.Config(&app, f.file, &wrong)
			switch {
			case conf == nil:
				log.Error("the callers were not read again: the old ones stay", "error", wrong.Err())
			case conf.Serve == nil || len(conf.Serve.Callers) == 0:
				log.Error("the file has no callers any more: the old ones stay", "file", f.file)
			default:
				server.SetCallers(callersOf(conf.Serve))
				log.Info("the callers were read again", "callers", len(conf.Serve.Callers))
			}
		}
	}()
	return func() {
		signal.Stop(again)
		cancel()
		<-done
	}
}
