package open

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
)

// StoreFlags select a store by its directory, or by its name in a configuration.
type StoreFlags struct {
	*term.App
	dir, File, Name string
	// Default is the directory if no flag names a store. Without it, a flag is needed.
	Default string
	// Admin is the address of the admin server to ask, or empty.
	Admin string
	// Process is this process, if it has the store open, or nil.
	Process *admin.Process

	// Quick: look for a key in likely scopes and in those with a rule, and walk over no store.
	Quick bool

	// KeepIDs makes an embedded store keep readable ids. ReadOnly: nothing changes the store.
	KeepIDs, ReadOnly bool

	// Conf and found are the selected configuration and store, once checked.
	Conf  *config.File
	Found *config.Store
	admin *admin.Client
}

// AddStore adds --store, --config and --store-name.
func (f *StoreFlags) AddStore(cmd *cobra.Command) {
	usage := "`DIR` of an embedded store"
	if f.Default != "" {
		usage += " (default " + f.Default + ")"
	}
	cmd.PersistentFlags().StringVar(&f.dir, "store", "", usage)
	term.CompleteDirs(cmd, "store")
	f.AddConfig(cmd)
}

// AddConfig adds --config and --store-name.
func (f *StoreFlags) AddConfig(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.File, "config", "", "configuration `FILE` that names the store")
	flags.StringVar(&f.Name, "store-name", "", "`NAME` of the store in the configuration (default the only one)")
	CompleteNames(f.App, cmd, "store-name", (*config.File).StoreNames)
}

// Shown returns the name of the store for messages.
func (f *StoreFlags) Shown() string {
	if f.Found == nil {
		return f.dir
	}
	return f.Found.Name
}

// Flags returns the flags that name the store on a command line.
func (f *StoreFlags) Flags() []string {
	if f.dir != "" {
		return []string{"--store", f.dir}
	}
	if f.File == "" { // flags named the store of this process
		return []string{"--store", f.Found.Name}
	}
	flags := []string{"--config", f.File, "--store-name", f.Found.Name}
	if f.EnvFile != "" {
		flags = append(flags, "--env-file", f.EnvFile)
	}
	return flags
}

// Find reads the configuration, if one is named, and finds the store in it. It
// reports whether there is one.
func (f *StoreFlags) Find(p *term.Problems) bool {
	said := slices.ContainsFunc(*p, func(text string) bool {
		return strings.HasPrefix(text, "--store ") || strings.HasPrefix(text, "--config ")
	})
	if f.dir == "" && f.File == "" && f.Name == "" && !said {
		f.dir = f.Default
	}
	switch {
	case f.dir != "" && (f.File != "" || f.Name != ""):
		p.Addf("--store and --config exclude each other: name the store one way")
	case f.dir != "":
		f.Found = &config.Store{Name: f.dir, Spec: f.Kinds.Directory(f.dir)}
		f.Conf = &config.File{Stores: []*config.Store{f.Found}}
	case f.Process != nil:
		f.Found = ChooseStore(f.Conf, f.Name, p)
	case f.File != "":
		needed := OnlyStore(f.Name)
		if f.Admin != "" {
			needed = NoStore
		}
		if f.Conf = ConfigFor(f.App, f.File, needed, p); f.Conf != nil {
			f.Found = ChooseStore(f.Conf, f.Name, p)
		}
	case said:
	case f.Name != "":
		p.Addf("--config FILE is missing: name the configuration that has the store %s", f.Name)
	default:
		p.Addf("--store DIR is missing: name the directory of the store, or --config FILE and --store-name NAME")
	}
	return f.Found != nil
}

// Check validates the flags and checks that the store can be read. Reading must
// not create a store.
func (f *StoreFlags) Check(p *term.Problems) {
	if !f.Find(p) {
		return
	}
	if f.Process != nil {
		return // it has the store open, in memory too
	}
	if why := f.Found.Spec.About().NoRecords; why != "" {
		p.Addf("%s %s", f.Shown(), why)
	}
	if f.Admin != "" {
		CheckAdmin(f.Admin, f.File, p)
		f.admin = Admin(f.Admin, f.Conf, p)
		return
	}
	for _, s := range f.Conf.Stack(f.Found.Name) {
		about := s.Spec.About()
		dir := about.Directory
		if dir == "" {
			continue
		}
		where := "--store " + dir
		if f.File != "" {
			where = "store " + s.Name + ": " + dir
		} else if scheme, _, address := strings.Cut(dir, "://"); address { // which may have a password
			p.Addf("--store names a directory, and this is an address (%s://): for a server, use --config FILE --store-name NAME", scheme)
			continue
		}
		switch exists, err := about.Exists(); {
		case err != nil:
			p.Addf("%s: %s", where, term.FileReason(err))
		case !exists:
			p.Addf("%s: there is no store in this directory", where)
		}
	}
}

// Open opens the store for this process, with readable ids, and with claims that outlive it. If
// another process has an embedded store open, the error says so; see diagnose.Holder.
func (f *StoreFlags) Open(ctx context.Context) (semel.Store, io.Closer, error) {
	patient, cancel := context.WithTimeout(ctx, f.Patience)
	defer cancel()
	store, opened, err := app.OpenStore(patient, f.Conf, f.Found.Name, &app.StoresOptions{KeepIDs: true, KeepClaims: true})
	if err != nil {
		return nil, nil, fmt.Errorf("open the store %s: %w", f.Shown(), Advise(ctx, f.Conf, f.Conf.Stack(f.Found.Name), err))
	}
	return store, opened, nil
}

// WithStore opens the store, calls use and closes it. If another process has an embedded
// store open, or --admin names a process, the store is that of the process; see
// admin.Store.
func (f *StoreFlags) WithStore(ctx context.Context, use func(semel.Store) error) error {
	store, opened, err := f.open(ctx)
	if err != nil {
		return err
	}
	err = use(store)
	if _, elsewhere := store.(*admin.Store); !elsewhere && f.Process == nil {
		err = stalled(ctx, f.Conf, f.Conf.Stack(f.Found.Name), err)
	}
	if closeErr := opened.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("close the store %s: %w", f.Shown(), term.InOneLine(closeErr)))
	}
	return err
}

func (f *StoreFlags) open(ctx context.Context) (semel.Store, io.Closer, error) {
	if f.Process != nil {
		store, err := f.Process.Store(f.Found.Name)
		return store, io.NopCloser(nil), err
	}
	if f.admin != nil {
		if err := CheckProcess(ctx, f.Admin, f.Conf); err != nil {
			return nil, nil, err
		}
		return f.admin.Store(f.Found.Name), f.admin, nil
	}
	patient, cancel := context.WithTimeout(ctx, f.Patience)
	defer cancel()
	var (
		store   semel.Store
		opened  *app.Stores
		client  *admin.Client
		dialErr error
	)
	var openErr error
	// A holder that answers no questions may be semel once, which has the store for moments.
	if err := retry.Poll(patient, time.Now().Add(moments), func() (settled bool) {
		store, opened, openErr = app.OpenStore(patient, f.Conf, f.Found.Name, &app.StoresOptions{KeepIDs: f.KeepIDs, ReadOnly: f.ReadOnly})
		if _, held := diagnose.Holder(openErr); !held {
			return true
		}
		client, dialErr = f.dialHolder(patient)
		return dialErr == nil || errors.Is(dialErr, fs.ErrPermission) || errors.As(dialErr, new(*admin.ForeignError))
	}); err != nil {
		return nil, nil, err
	}
	err := Advise(ctx, f.Conf, f.Conf.Stack(f.Found.Name), openErr)
	holder, held := diagnose.Holder(err)
	switch {
	case err == nil:
		return store, opened, nil
	case held:
		err := dialErr
		switch {
		case err == nil:
			return client.Store(""), client, nil
		case errors.Is(err, fs.ErrPermission):
			return nil, nil, f.inUse(holder, ", which answers only its own user: run this command as that user")
		case errors.As(err, new(*admin.ForeignError)):
			return nil, nil, f.inUse(holder, ": "+err.Error())
		}
		return nil, nil, f.inUse(holder, ", which does not answer questions as semel run does: run this command again when that process has ended")
	case patient.Err() != nil && ctx.Err() == nil:
		return nil, nil, fmt.Errorf("open the store %s: no answer in %s: %w", f.Shown(), term.FormatElapsed(f.Patience), term.InOneLine(err))
	}
	return nil, nil, fmt.Errorf("open the store %s: %w", f.Shown(), term.InOneLine(err))
}

// moments is how long a verb waits for a store that another process has open without
// answering questions.
const moments = time.Second

// InUseError means that another process has an embedded store open and does not answer.
type InUseError struct{ text string }

// Error implements error.
func (e *InUseError) Error() string { return e.text }

func (f *StoreFlags) inUse(holder, remedy string) error {
	return &InUseError{fmt.Sprintf("the store %s is in use by %s%s", f.Shown(), holder, remedy)}
}

// dialHolder returns a client for the process that has the embedded store open.
func (f *StoreFlags) dialHolder(ctx context.Context) (client *admin.Client, err error) {
	for _, s := range f.Conf.Stack(f.Found.Name) {
		if dir := s.Spec.About().Directory; dir != "" {
			if client, err = admin.Dial(ctx, dir); err == nil {
				return client, nil
			}
		}
	}
	return nil, err
}

// Able returns an optional interface of the store, or an error if the store lacks
// it. what says in the user's terms what cannot be done.
func Able[T any](f *StoreFlags, s semel.Store, what string) (T, error) {
	ability, ok := semel.As[T](s)
	if !ok {
		return ability, fmt.Errorf("the store %s is of the kind %s, which cannot %s", f.Shown(), f.Found.Spec.Kind(), what)
	}
	return ability, nil
}

// LookUp returns the existing records of the keys, with the key in each.
func (f *StoreFlags) LookUp(ctx context.Context, store semel.Store, keys []semel.Key) ([]semel.Record, error) {
	looker, err := Able[semel.Inspector](f, store, "look keys up")
	if err != nil {
		return nil, err
	}
	records := make([]semel.Record, len(keys))
	if err := looker.Look(ctx, keys, records); err != nil {
		return nil, fmt.Errorf("look the key up: %w", err)
	}
	var found []semel.Record
	for i, record := range records {
		if record.State != semel.Absent {
			record.Key = keys[i]
			found = append(found, record)
		}
	}
	return found, nil
}

// LookUpDigest returns the record of a digest, or none.
func (f *StoreFlags) LookUpDigest(ctx context.Context, store semel.Store, d semel.Digest) ([]semel.Record, error) {
	by, err := Able[semel.DigestResolver](f, store, "find a key by its digest: name its ID")
	if err != nil {
		return nil, err
	}
	record, err := by.LookDigest(ctx, d)
	switch {
	case err != nil:
		return nil, f.ByDigest("find", d, err)
	case record.State == semel.Absent:
		return nil, nil
	}
	record.Digest = d
	return []semel.Record{record}, nil
}

// ByDigest explains an error of a store that was given a digest.
func (f *StoreFlags) ByDigest(verb string, d semel.Digest, err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%s the digest %s: the store %s needs the ID of the key: its layers have digests of their own, and %s keeps no ids (keep_ids)",
			verb, d, f.Shown(), f.Conf.Decider(f.Found.Name).Name)
	}
	return fmt.Errorf("%s the digest %s: %w", verb, d, err)
}

// StoreOf returns the store of a pipeline's keys, or the reason why it cannot be
// read.
func StoreOf(a *term.App, file string, conf *config.File, p *config.Pipeline) (*StoreFlags, term.Problems) {
	var reasons term.Problems
	switch conf.Mode(p) {
	case config.Direct:
		reasons.Addf("%s keeps no keys: it delivers every row of its outbox", p.Name)
		return nil, reasons
	case config.SourceIsSink:
		reasons.Addf("the keys of %s are in Kafka, in the state of the running pipeline", p.Name)
		return nil, reasons
	}
	s := &StoreFlags{App: a, File: file, Conf: conf, Name: p.Store.Name}
	s.Check(&reasons)
	return s, reasons
}
