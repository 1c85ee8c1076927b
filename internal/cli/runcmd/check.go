package runcmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/cli/trialcmd"
	"github.com/semel-dev/semel/internal/config"
)

// checkLine is one line of run --check.
type checkLine struct {
	Stage string `json:"stage"`
	// What is the pipeline or store that was checked.
	What    string `json:"what"`
	Status  string `json:"status"`
	Subject string `json:"subject,omitempty"`
	Found   string `json:"found"`
	Cost    string `json:"cost,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// Statuses of a line, besides the severities of findings.
const (
	notChecked = "not checked" // for example because a server does not answer
	skipped    = "skipped"     // because of an earlier line, or because there is nothing to check
)

// The sample that run --check reads from each pipeline.
const (
	checkLimit = 1000
	checkFor   = 5 * time.Second
)

// check is one run --check.
type check struct {
	*term.App
	name   string // of the file
	conf   *config.File
	chosen []*config.Pipeline

	lines []checkLine
	count map[string]int // by status
	bad   map[string]string
}

// do checks the configuration, the tables, the servers, and a sample of the messages. It
// changes nothing, and blocks until the servers have answered, for each at most as long
// as the patience of the program.
func (c *check) do(ctx context.Context) error {
	c.count, c.bad = map[string]int{}, map[string]string{}
	c.lint()
	stores := storesOf(c.conf, c.chosen)
	for _, s := range stores {
		if database, ok := s.Spec.(config.Database); ok {
			c.tables(ctx, s.Name, database)
		}
	}
	for _, s := range stores {
		if why := c.bad[s.Name]; why != "" {
			c.add(checkLine{Stage: "doctor", What: s.Name, Status: skipped, Found: why})
			continue
		}
		c.doctor(ctx, app.Examine(ctx, c.conf, s, c.Patience))
	}
	for _, p := range c.chosen {
		c.doctor(ctx, c.examine(ctx, p))
		c.sample(ctx, p)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.finish()
}

func (c *check) add(l checkLine) {
	l.Found, l.Cost, l.Remedy = c.Redact(term.JoinLines(term.PlainText(l.Found))), c.Redact(l.Cost), c.Redact(l.Remedy)
	c.count[l.Status]++
	c.lines = append(c.lines, l)
}

// addFindings adds the findings that are not fine, or one line if none exists.
func (c *check) addFindings(stage, what string, findings []doctor.Finding) {
	fine, said := 0, false
	for _, f := range findings {
		if f.Severity == doctor.Fine {
			fine++
			continue
		}
		said = true
		c.add(checkLine{stage, what, f.Severity.String(), f.Subject, f.Found, f.Cost, f.Remedy})
	}
	if !said && len(findings) > 0 {
		c.add(checkLine{Stage: stage, What: what, Status: doctor.Fine.String(), Found: term.Plural(fine, "check")})
	}
}

// lint adds the findings of the file, of its stores and of the chosen pipelines.
func (c *check) lint() {
	of := map[string]bool{"": true}
	for _, p := range c.chosen {
		of[p.Name] = true
	}
	var findings []doctor.Finding
	for _, f := range c.conf.Lint() {
		if of[f.Pipeline] {
			findings = append(findings, f.Finding)
		}
	}
	if findings == nil {
		c.add(checkLine{Stage: "lint", What: filepath.Base(c.name), Status: doctor.Fine.String(), Found: "no findings"})
	}
	c.addFindings("lint", filepath.Base(c.name), findings)
}

// storesOf returns the stores that pipelines need, with their layers, in the order of
// the file.
func storesOf(conf *config.File, chosen []*config.Pipeline) []*config.Store {
	needed := map[string]bool{}
	for _, p := range chosen {
		for _, name := range []string{p.Store.Name, p.Parked.Store.Name, p.Source.About(p).Outbox.Name} {
			for _, s := range conf.Stack(name) {
				needed[s.Name] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(conf.Stores), func(s *config.Store) bool { return !needed[s.Name] })
}

// tables checks whether the tables of a store are up to date.
func (c *check) tables(ctx context.Context, name string, database config.Database) {
	line := checkLine{Stage: "migrate", What: name}
	defer func() { c.add(line) }()
	steps, err := database.Tables(c.conf, c.Patience).Status(ctx)
	if err != nil {
		of, _ := c.conf.Store(name)
		line.Status, line.Found = notChecked, open.Advise(ctx, c.conf, []*config.Store{of}, err).Error()
		c.bad[name] = "its tables could not be checked"
		return
	}
	missing, all := 0, 0
	for _, step := range steps {
		if step.Applied.IsZero() {
			missing++
		}
		if !step.Newer {
			all++
		}
	}
	line.Status, line.Found = doctor.Fine.String(), fmt.Sprintf("%d of %s applied", all-missing, term.Plural(all, "step"))
	if missing > 0 {
		line.Status, line.Cost = doctor.Broken.String(), "the store cannot be opened"
		line.Remedy = "semel migrate up --config " + c.name + " --store-name " + name
		c.bad[name] = "its tables are missing"
	}
}

// doctor adds what the examination of a store or pipeline finds.
func (c *check) doctor(ctx context.Context, x *config.Examination) {
	if x.Store != nil {
		x.Err = open.Advise(ctx, c.conf, []*config.Store{x.Store}, x.Err)
	}
	c.addFindings("doctor", x.Name(), x.Findings)
	if x.Breaks() && x.Store != nil {
		c.bad[x.Name()] = "it is broken"
	}
	if x.Err != nil {
		c.bad[x.Name()] = "it could not be checked"
		c.add(checkLine{Stage: "doctor", What: x.Name(), Status: notChecked, Found: x.Err.Error()})
	}
}

// examine examines a pipeline, and the scope of its keys if its store can be opened.
func (c *check) examine(ctx context.Context, p *config.Pipeline) *config.Examination {
	x := app.ExaminePipeline(ctx, c.conf, p, c.Patience)
	if decider := c.conf.Decider(p.Store.Name); decider == nil || c.bad[decider.Name] != "" {
		return x
	}
	if open.ExamineScope(ctx, c.App, c.name, x) {
		c.bad[p.Name] = "run refuses its scope"
	}
	return x
}

// sample decides the first messages of a pipeline as dry-run does.
func (c *check) sample(ctx context.Context, p *config.Pipeline) {
	line := checkLine{Stage: "dry-run", What: p.Name, Status: skipped}
	for _, name := range []string{p.Name, p.Store.Name} {
		if why := c.bad[name]; why != "" {
			line.Found = name + ": " + why
			c.add(line)
			return
		}
	}
	severity, counts, err := trialcmd.Sample(ctx, c.App, c.name, c.conf, p, checkLimit, checkFor)
	switch {
	case errors.Is(err, config.ErrNoSample):
		line.Found = "its source receives messages and cannot be read in advance"
	case err != nil:
		line.Status, line.Found = notChecked, err.Error()
	default:
		line.Status, line.Found = severity.String(), counts
		if severity != doctor.Fine {
			line.Remedy = "semel dry-run " + c.name + " " + p.Name
		}
	}
	c.add(line)
}

// finish prints the table. It returns ErrFound if there is a warning or a broken
// finding, and an error if something was not checked.
func (c *check) finish() error {
	if err := c.print(); err != nil {
		return err
	}
	warnings, broken := c.count[doctor.Warning.String()], c.count[doctor.Broken.String()]
	c.Note("%d fine, %d to note, %d with a warning, %d broken, %d skipped, %d not checked",
		c.count[doctor.Fine.String()], c.count[doctor.Notice.String()], warnings, broken, c.count[skipped], c.count[notChecked])
	switch {
	case c.count[notChecked] > 0:
		return fmt.Errorf("%s: %s: fix what the table says, and run this command again", c.name, term.Plural(c.count[notChecked], "check")+" could not be made")
	case warnings+broken > 0:
		return term.ErrFound
	}
	return nil
}

func (c *check) print() error {
	if c.JSON {
		for _, l := range c.lines {
			if err := c.PrintJSON(l); err != nil {
				return err
			}
		}
		return nil
	}
	var out strings.Builder
	wide := len("WHAT")
	for _, l := range c.lines {
		wide = max(wide, len(l.What))
	}
	row := func(stage, what, status, found string) {
		fmt.Fprintf(&out, "%-7s  %-*s  %-11s  %s\n", stage, wide, what, status, found)
	}
	row("STAGE", "WHAT", "STATUS", "FOUND AND REMEDY")
	for _, l := range c.lines {
		found := l.Found
		if l.Subject != "" {
			found = l.Subject + ": " + found
		}
		row(l.Stage, l.What, l.Status, term.DisplayText(found))
		if l.Cost != "" {
			row("", "", "", "cost: "+term.DisplayText(l.Cost))
		}
		if l.Remedy != "" {
			row("", "", "", "do:   "+term.DisplayText(l.Remedy))
		}
	}
	_, err := c.Stdout.Write([]byte(out.String()))
	return err
}
