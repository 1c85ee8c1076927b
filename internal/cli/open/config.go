// Package open reads the configuration of a verb, and chooses and opens the
// stores and pipelines in it.
package open

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// load reads a configuration with the variables of env. If it comes from a pipe, the end of the
// program also ends the wait for the writer. choose selects the needed part; see
// config.ReadForStore.
func load(a *term.App, name string, env func(string) string, choose func(*config.File) (store string, only bool)) (*config.File, error) {
	flags := os.O_RDONLY
	if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		flags |= syscall.O_NONBLOCK // otherwise opening a pipe would block as well
	}
	file, err := os.OpenFile(name, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the file was only read, so nothing can be lost
	if a.NoEnv {
		return a.Kinds.ReadWithPlaceholders(name, a.Interruptible(file), env)
	}
	return a.Kinds.ReadForStore(name, a.Interruptible(file), env, choose)
}

// ChooseStore returns the store with this name, or the only one.
func ChooseStore(conf *config.File, name string, p *term.Problems) *config.Store {
	all := conf.StoreNames()
	if name == "" && len(all) == 1 {
		name = all[0]
	}
	s, ok := conf.Store(name)
	switch {
	case ok:
		return s
	case name == "":
		p.Addf("--store-name NAME is missing: %s names %s", conf.Name, strings.Join(all, ", "))
	default:
		p.Addf("--store-name %s: %s has no such store: %s", name, conf.Name, schema.OneOf(name, all))
	}
	return nil
}

// Config reads a configuration. It returns nil if the configuration is
// invalid. From then on, its secrets are hidden in all output.
func Config(a *term.App, name string, p *term.Problems) *config.File {
	return ConfigFor(a, name, config.Everything, p)
}

// OnlyStore selects the store with this name, or the only one, as the only needed
// part of a configuration.
func OnlyStore(name string) func(*config.File) (string, bool) {
	return func(conf *config.File) (string, bool) {
		if all := conf.StoreNames(); name == "" && len(all) == 1 {
			return all[0], true
		}
		return name, true
	}
}

// ConfigFor is Config for the use of the store that choose names; see
// config.ReadForStore.
func ConfigFor(a *term.App, name string, choose func(*config.File) (store string, only bool), p *term.Problems) *config.File {
	conf, problems := check(a, name, choose, p)
	for _, problem := range problems {
		*p = append(*p, problem.String())
	}
	return conf
}

// Check is Config for a verb that reports the problems of the configuration by their
// places. Those of flags are added to p.
func Check(a *term.App, name string, p *term.Problems) (*config.File, []schema.Problem) {
	return check(a, name, config.Everything, p)
}

func check(a *term.App, name string, choose func(*config.File) (store string, only bool), p *term.Problems) (*config.File, []schema.Problem) {
	before := len(*p)
	env := Environment(a, p)
	if len(*p) > before {
		return nil, nil
	}
	whole := schema.Place{File: name}
	conf, err := load(a, name, env, choose)
	var wrong *schema.Error
	switch {
	case errors.As(err, &wrong):
		problems := wrong.Problems
		if a.Kinds.Missing != "" {
			problems = append(problems, schema.Problem{Place: whole, Text: a.Kinds.Missing})
		}
		return nil, problems
	case err != nil:
		a.Unread = err
		return nil, []schema.Problem{{Place: whole, Text: strings.TrimPrefix(term.FileReason(err), name+": ")}}
	}
	a.Redact = conf.Redact
	if problems := app.CheckAddresses(conf); len(problems) > 0 {
		return nil, problems
	}
	return conf, nil
}

// Pipelines reads a configuration and returns its pipelines with these names, or all
// if there is no name. Empty names are ignored.
func Pipelines(a *term.App, file string, names []string, p *term.Problems) (conf *config.File, chosen []*config.Pipeline) {
	return PipelinesFor(a, file, names, config.Everything, p)
}

// PipelinesFor is Pipelines for a part of the configuration; see config.ReadForStore.
func PipelinesFor(a *term.App, file string, names []string, choose func(*config.File) (store string, only bool), p *term.Problems) (conf *config.File, chosen []*config.Pipeline) {
	conf = ConfigFor(a, file, choose, p)
	switch {
	case conf == nil:
		return nil, nil
	case len(conf.Pipelines) == 0 && conf.Proxy != nil:
		p.Addf("%s: it describes a proxy, and this command is for pipelines: semel proxy %s runs it, and semel keys show KEY --caller CALLER --config %s shows a key", conf.Name, conf.Name, conf.Name)
		return nil, nil
	case len(conf.Pipelines) == 0:
		p.Addf("%s: it names no pipeline", conf.Name)
		return nil, nil
	case strings.Join(names, "") == "":
		return conf, conf.Pipelines
	}
	for _, name := range names {
		if found, ok := conf.Pipeline(name); ok {
			chosen = append(chosen, found)
			continue
		}
		p.Addf("%s: %s has no such pipeline: %s", name, conf.Name, schema.OneOf(name, conf.PipelineNames()))
	}
	return conf, chosen
}
