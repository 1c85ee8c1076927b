package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/kind/tiered"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/wiring"
)

// storeFlags select a store by its directory, or by its name in a configuration.
type storeFlags struct {
	dir, file, name string

	// conf and found are the selected configuration and store, once checked.
	conf  *config.File
	found *config.Store
}

func (f *storeFlags) addStore(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&f.dir, "store", "", "`DIR` of an embedded store")
	completeDirs(cmd, "store")
	f.addConfig(cmd)
}

func (f *storeFlags) addConfig(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.file, "config", "", "configuration `FILE` that names the store")
	flags.StringVar(&f.name, "store-name", "", "`NAME` of the store in the configuration (default the one there is)")
	completeValues(cmd, "store-name")
}

// shown returns the name of the store for messages.
func (f *storeFlags) shown() string {
	if f.found == nil {
		return f.dir
	}
	return f.found.Name
}

// find reads the configuration, if one is named, and finds the store in it. It
// reports whether there is one.
func (f *storeFlags) find(a *app, p *problems) bool {
	said := slices.ContainsFunc(*p, func(text string) bool {
		return strings.HasPrefix(text, "--store ") || strings.HasPrefix(text, "--config ")
	})
	switch {
	case f.dir != "" && (f.file != "" || f.name != ""):
		p.addf("--store and --config exclude each other: name the store one way")
	case f.dir != "":
		f.found = &config.Store{Name: f.dir, Spec: embedded.At(f.dir)}
		f.conf = &config.File{Stores: []*config.Store{f.found}}
	case f.file != "":
		if f.conf = a.readConfigFor(f.file, onlyStore(f.name), p); f.conf != nil {
			f.found = chooseStore(f.conf, f.name, p)
		}
	case said:
	case f.name != "":
		p.addf("--config FILE is missing: name the configuration that has the store %s", f.name)
	default:
		p.addf("--store DIR is missing: name the directory of the store, or --config FILE and --store-name NAME")
	}
	return f.found != nil
}

// chooseStore returns the store with this name, or the only one.
func chooseStore(conf *config.File, name string, p *problems) *config.Store {
	all := conf.StoreNames()
	if name == "" && len(all) == 1 {
		name = all[0]
	}
	s, ok := conf.Store(name)
	switch {
	case ok:
		return s
	case name == "":
		p.addf("--store-name NAME is missing: %s names %s", conf.Name, strings.Join(all, ", "))
	default:
		p.addf("--store-name %s: %s has no such store: %s", name, conf.Name, schema.OneOf(name, all))
	}
	return nil
}

// readConfig reads a configuration. It returns nil if the configuration is
// invalid. From then on, its secrets are hidden in all output.
func (a *app) readConfig(name string, p *problems) *config.File {
	return a.readConfigFor(name, func(*config.File) (string, bool) { return "", false }, p)
}

// onlyStore selects the store with this name, or the only one, as the only needed
// part of a configuration.
func onlyStore(name string) func(*config.File) (string, bool) {
	return func(conf *config.File) (string, bool) {
		if all := conf.StoreNames(); name == "" && len(all) == 1 {
			return all[0], true
		}
		return name, true
	}
}

// readConfigFor is readConfig for the use of the store that choose names; see
// config.ReadForStore.
func (a *app) readConfigFor(name string, choose func(*config.File) (store string, only bool), p *problems) *config.File {
	conf, err := a.loadConfig(name, choose)
	var wrong *schema.Error
	switch {
	case errors.As(err, &wrong):
		for _, problem := range wrong.Problems {
			*p = append(*p, problem.String())
		}
		return nil
	case err != nil:
		a.unread = err
		p.addf("%s: %s", name, strings.TrimPrefix(fileReason(err), name+": "))
		return nil
	}
	a.redact = conf.Redact
	if problems := wiring.CheckAddresses(conf); len(problems) > 0 {
		for _, problem := range problems {
			*p = append(*p, problem.String())
		}
		return nil
	}
	return conf
}

// check validates the flags and checks that the store can be read. Reading must
// not create a store.
func (f *storeFlags) check(a *app, p *problems) {
	if !f.find(a, p) {
		return
	}
	if why := f.found.Spec.About().NoRecords; why != "" {
		p.addf("%s %s", f.shown(), why)
	}
	for _, s := range f.conf.Stack(f.found.Name) {
		dir := s.Spec.About().Directory
		if dir == "" {
			continue
		}
		where := "--store " + dir
		if f.file != "" {
			where = "store " + s.Name + ": " + dir
		}
		switch exists, err := embedded.Exists(dir); {
		case err != nil:
			p.addf("%s: %s", where, fileReason(err))
		case !exists:
			p.addf("%s: there is no store in this directory", where)
		}
	}
}

// keepIDs makes an embedded store keep readable ids.
func (f *storeFlags) keepIDs() {
	for _, s := range f.conf.Stack(f.found.Name) {
		if spec, ok := s.Spec.(*embedded.Store); ok {
			spec.KeepIDs = true
		}
	}
}

// withStore opens the store, calls use and closes it.
func (f *storeFlags) withStore(ctx context.Context, a *app, use func(semel.Store) error) error {
	opened, err := f.open(ctx, a)
	if err != nil {
		return advised(ctx, f.conf.Stack(f.found.Name), err)
	}
	err = stalled(ctx, f.conf.Stack(f.found.Name), use(opened.Store))
	if closeErr := opened.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("close the store %s: %w", f.shown(), inOneLine(closeErr)))
	}
	return err
}

func (f *storeFlags) open(ctx context.Context, a *app) (*wiring.Opened, error) {
	for _, s := range f.conf.Stack(f.found.Name) {
		if spec, ok := s.Spec.(*tiered.Store); ok && spec.OnStoreError == "pass" {
			// Under pass, messages are processed without a record while the store is
			// down. A command that marks keys must get the error instead.
			spec.OnStoreError = "stop"
		}
	}
	patient, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	opened, err := wiring.Open(patient, f.conf, f.found.Name, nil)
	holder, held := embedded.Holder(err)
	switch {
	case err == nil:
		return opened, nil
	case held:
		return nil, fmt.Errorf("the store %s is in use by %s: run this again when that has ended", f.shown(), holder)
	case patient.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("open the store %s: no answer in %s: %w", f.shown(), formatElapsed(a.patience), inOneLine(err))
	}
	return nil, fmt.Errorf("open the store %s: %w", f.shown(), inOneLine(err))
}

// able returns an optional interface of the store, or an error if the store lacks
// it. what says in the user's terms what cannot be done.
func able[T any](f *storeFlags, s semel.Store, what string) (T, error) {
	ability, ok := semel.Ability[T](s)
	if !ok {
		return ability, fmt.Errorf("the store %s is of the kind %s, which cannot %s", f.shown(), f.found.Spec.Kind(), what)
	}
	return ability, nil
}

// lineError puts a driver error, which may have several lines, on one line.
type lineError struct{ error }

func inOneLine(err error) error { return lineError{err} }

// Error implements error.
func (e lineError) Error() string { return joinLines(e.error.Error()) }

func joinLines(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

// Unwrap returns the original error with all its lines.
func (e lineError) Unwrap() error { return e.error }
