package migratecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/schema"
)

// dsnFlags name a database without a configuration. Their values become a configuration with a
// single store, so that they are checked and hidden in the same way.
type dsnFlags struct {
	env        string
	fields     map[string]*string // by the name of the field
	keepIDs    bool
	keepOrigin bool
}

// dsnFields are the fields of a PostgreSQL store that the tables depend on.
var dsnFields = [...]struct{ flag, field, usage string }{
	{"schema", "schema", "with --dsn-env: `NAME` of the schema of the tables (default public)"},
	{"prefix", "prefix", "with --dsn-env: `PREFIX` of the table names (default semel_)"},
	{"cleanup", "cleanup", "with --dsn-env: `FORM` of the clean-up: delete or message-time (default delete)"},
	{"message-age", "message_age", "with --dsn-env and message-time: `DUR` that a message may be old (default 7d)"},
	{"partitions", "partitions", "with --dsn-env: `N` partitions of the table (default none, or 32 with message-time)"},
}

func (d *dsnFlags) add(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&d.env, "dsn-env", "", "`NAME` of the environment variable with the address of the database, instead of a configuration")
	d.fields = map[string]*string{}
	for _, f := range dsnFields {
		d.fields[f.field] = flags.String(f.flag, "", f.usage)
		term.CompleteValues(cmd, f.flag)
	}
	flags.BoolVar(&d.keepIDs, "keep-ids", false, "with --dsn-env: columns for readable keys")
	flags.BoolVar(&d.keepOrigin, "keep-origin", false, "with --dsn-env: a column for origins")
	term.CompleteValues(cmd, "dsn-env")
}

// given returns the first of the flags that is set, or "".
func (d *dsnFlags) given(cmd *cobra.Command) string {
	for _, f := range dsnFields {
		if cmd.Flags().Changed(f.flag) {
			return f.flag
		}
	}
	if d.keepIDs {
		return "keep-ids"
	}
	if d.keepOrigin {
		return "keep-origin"
	}
	return ""
}

// find makes the configuration of the flags and the only store in it. offline means
// that the address is not used. It reports whether there is a store.
func (d *dsnFlags) find(s *open.StoreFlags, offline bool, p *term.Problems) bool {
	if s.File != "" || s.Name != "" {
		p.Addf("--dsn-env and --config exclude each other: name the database one way")
		return false
	}
	if !schema.IsVariable(d.env) {
		p.Addf("--dsn-env: expected the name of an environment variable, like DATABASE_URL, and not the address itself")
		return false
	}
	fields := map[string]any{"dsn": "${env:" + d.env + "}", "keep_origin": d.keepOrigin}
	for name, value := range d.fields {
		if *value != "" {
			fields[name] = strings.ReplaceAll(*value, "${", "$${")
		}
	}
	if d.keepIDs {
		fields["keep_ids"] = true
	}
	text, err := json.Marshal(map[string]any{"stores": map[string]any{d.env: map[string]any{"postgres": fields}}})
	if err != nil {
		p.Addf("%v", err)
		return false
	}
	env := open.Environment(s.App, p)
	if len(*p) > 0 {
		return false
	}
	conf, err := s.Kinds.Parse("--dsn-env", text, func(name string) string {
		if value := env(name); value != "" || !offline {
			return value
		}
		return "postgres://localhost"
	})
	var problems []schema.Problem
	if wrong, ok := errors.AsType[*schema.Error](err); ok {
		problems = wrong.Problems
	} else if err != nil {
		p.Addf("%v", err)
		return false
	} else {
		s.Redact = conf.Redact
		problems = app.CheckAddresses(conf)
	}
	for _, problem := range problems {
		p.Addf("%s", d.inFlags(problem.Text))
	}
	if len(problems) > 0 {
		return false
	}
	s.Conf, s.Found = conf, conf.Stores[0]
	return true
}

// inFlags replaces the path at the start of a problem by the flag that it is about.
func (d *dsnFlags) inFlags(problem string) string {
	problem, _, _ = strings.Cut(problem, ", or write ${env:") // there is no file to write into
	problem = strings.Replace(problem, "set it, name a file", "set it, or name a file", 1)
	path := fmt.Sprintf("stores.%s.postgres.", d.env)
	for _, f := range append(dsnFields[:], struct{ flag, field, usage string }{flag: "dsn-env", field: "dsn"}) {
		if rest, ok := strings.CutPrefix(problem, path+f.field+":"); ok {
			return "--" + f.flag + ":" + rest
		}
	}
	return problem
}
