// Package parkedcmd has the verbs of semel parked.
package parkedcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// parkedFlags select parked messages.
type parkedFlags struct {
	*term.App
	file, pipeline string
	admin          string // the admin server to ask, or ""

	// The filters.
	because string // the reason why they were parked
	ids     []string
	choice  keyrecord.KeyFlags
	older   time.Duration
	all     bool

	conf   *config.File
	chosen []*config.Pipeline
	keys   []semel.Key

	unreadable error // messages that parkedOn could not read
}

// New returns the verb parked.
func New(a *term.App) *cobra.Command {
	f := &parkedFlags{App: a}
	cmd := term.Group(a, &cobra.Command{
		Use:   "parked VERB --config FILE",
		Short: "List parked messages, and settle them",
		Example: `semel parked ls --config pipelines.yaml
semel parked retry --all --config pipelines.yaml
semel parked skip 9f2c41d07be35a1186c0de42 --reason "a test of ours" --config pipelines.yaml`,
		Long: `Lists the messages that the pipelines of a configuration parked, and settles them:
retry processes them again through their keys, skip gives them up, and done
declares that their effects happened.

A parked message has its headers, its origin and a reason: attempts (the last
attempt failed), permanent (the target refused it permanently), late, mismatch
(its key was used with another body), unknown (its effect may have happened),
key-missing or key-invalid, or unreadable (its format or its envelope).

A message in a Kafka topic has the id TOPIC/PARTITION/OFFSET. It stays in the
topic until the retention ends. Settled messages are recorded in another topic,
whose name ends with -settled, and are not listed any more.`,
	})
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.file, "config", "", "configuration `FILE` that has the pipelines")
	flags.StringVar(&f.pipeline, "pipeline", "", "only messages of the pipeline `NAME` (default all)")
	open.CompleteNames(a, cmd, "pipeline", (*config.File).PipelineNames)
	cmd.AddCommand(
		newParkedListCommand(f),
		newParkedShowCommand(f),
		newParkedRetryCommand(f),
		newParkedSkipCommand(f),
		newParkedDoneCommand(f),
	)
	return cmd
}

// parkedReasons returns the reasons for parking a message.
func parkedReasons() (names []string) {
	for _, reason := range pipeline.Reasons() {
		names = append(names, string(reason))
	}
	return names
}

// addFilters adds the filter flags. because is the name of the flag for the
// reason.
func (f *parkedFlags) addFilters(cmd *cobra.Command, because string) {
	flags := cmd.Flags()
	flags.StringVar(&f.because, because, "", "only messages parked for `REASON`: "+strings.Join(parkedReasons(), ", "))
	flags.StringArrayVar(&f.ids, "key", nil, "only messages with the key `ID`; repeat it for a composite key")
	term.AddParsed(flags, &f.older, "older", "", "DUR", "only messages parked longer ago than this", schema.ParseDuration)
	f.choice.Add(cmd)
	term.CompleteValues(cmd, because, parkedReasons()...)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// addChoice adds the flags of a verb that settles messages. Such a verb requires
// a selection.
func (f *parkedFlags) addChoice(cmd *cobra.Command, because string) {
	f.addFilters(cmd, because)
	cmd.Flags().BoolVar(&f.all, "all", false, "all parked messages")
	cmd.ValidArgsFunction = f.completeIDs
}

// Limits of a completion, during which a person waits.
const (
	completedIDs = 200
	completedFor = 2 * time.Second
)

// completeIDs completes the ids of parked messages, each with its pipeline and its reason. What
// cannot be read in time is left out.
func (f *parkedFlags) completeIDs(cmd *cobra.Command, args []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	var wrong term.Problems
	if f.check(nil, false, &wrong); wrong.Err() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completedFor)
	defer cancel()
	_ = f.withDeadLetters(ctx, func(stores []deadLetters) error {
		for _, s := range stores {
			_ = f.parkedOn(ctx, s, func(m *pipeline.Parked) bool {
				if !slices.Contains(args, m.ID) {
					ids = append(ids, term.OneLine(m.ID)+"\t"+term.OneLine(m.Pipeline+": "+string(m.Reason)))
				}
				return len(ids) < completedIDs
			})
		}
		return nil
	})
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// check validates the flags. If settles is set, messages must be selected.
func (f *parkedFlags) check(ids []string, settles bool, p *term.Problems) {
	filtered := f.because != "" || len(f.ids) > 0 || f.older != 0
	switch {
	case len(ids) > 0 && (filtered || f.all):
		p.Addf("IDs and filters exclude each other: use one of them")
	case f.all && filtered:
		p.Addf("--all and filters exclude each other: leave --all out")
	case settles && len(ids) == 0 && !filtered && !f.all:
		p.Addf("no message is selected: name IDs, use filters such as --key and --older, or write --all")
	}
	if f.because != "" && !slices.Contains(parkedReasons(), f.because) {
		p.Addf("the reason %q: %s", f.because, schema.OneOf(f.because, parkedReasons()))
	}
	if len(f.ids) > 0 {
		f.keys = f.choice.Keys("", f.ids, p)
	}
	if f.file == "" {
		p.Addf("--config FILE is missing: name the configuration")
		return
	}
	needed := config.Everything
	if f.admin != "" {
		needed = open.NoStore
	}
	f.conf, f.chosen = open.PipelinesFor(f.App, f.file, []string{f.pipeline}, needed, p)
	for _, k := range f.keys {
		for _, chosen := range f.chosen {
			for _, id := range keyrecord.Shaped(chosen.Key.Rule, []string{k.ID}) {
				f.keys = append(f.keys, semel.Key{ID: id})
			}
		}
	}
	if f.admin != "" && f.conf != nil {
		open.Admin(f.admin, f.conf, p) // reports a wrong address once
	}
}

// chooses reports whether a message passes the filters.
func (f *parkedFlags) chooses(m *pipeline.Parked, now time.Time) bool {
	switch {
	case f.because != "" && string(m.Reason) != f.because, f.older != 0 && now.Sub(m.At) < f.older:
		return false
	case len(f.keys) == 0:
		return true
	}
	return slices.ContainsFunc(f.keys, func(k semel.Key) bool { return k.ID == m.Key.ID })
}

// deadLetters is the dead-letter store of one pipeline.
type deadLetters struct {
	spec    *config.Pipeline
	letters pipeline.DeadLetters
}

// withDeadLetters opens the parked messages of the selected pipelines, if there
// are any, and closes them after use returns. If a topic cannot be opened, it
// continues with the rest and returns that error after use.
func (f *parkedFlags) withDeadLetters(ctx context.Context, use func([]deadLetters) error) (err error) {
	if err := open.CheckProcess(ctx, f.admin, f.conf); err != nil {
		return err
	}
	var stores []deadLetters
	var unopened error // errors of topics that could not be opened
	defer func() {
		for _, s := range stores {
			err = errors.Join(err, s.letters.Close())
		}
	}()
	for _, p := range f.chosen {
		patient, cancel := context.WithTimeout(ctx, f.Patience)
		letters, ok, err := open.Parked(patient, f.admin, f.conf, p)
		cancel()
		if err != nil {
			err = fmt.Errorf("open the parked messages of %s: %w", p.Name, term.InOneLine(f.conf.Advise(p, config.ParkedPart, err)))
			if p.Parked.Topic == "" || ctx.Err() != nil {
				return err
			}
			unopened = errors.Join(unopened, err)
			continue
		}
		if ok {
			stores = append(stores, deadLetters{p, letters})
		}
	}
	if len(stores) == 0 && unopened != nil {
		return unopened
	}
	err = use(stores)
	return errors.Join(err, unopened, f.unreadable)
}

// parkedOn lists the messages in a dead-letter store. If some cannot be read, it
// continues with the rest. The error is returned at the end; see withDeadLetters.
func (f *parkedFlags) parkedOn(ctx context.Context, s deadLetters, fn func(*pipeline.Parked) bool) error {
	err := s.letters.List(ctx, s.spec.Name, fn)
	if err != nil {
		err = fmt.Errorf("read the parked messages of %s: %w", s.spec.Name, term.InOneLine(err))
	}
	if errors.Is(err, pipeline.ErrUnreadable) {
		f.unreadable, err = errors.Join(f.unreadable, err), nil
	}
	return err
}

// chosenOn returns the selected messages, store by store. If a message was named
// and does not exist, that is an error.
func (f *parkedFlags) chosenOn(ctx context.Context, stores []deadLetters, ids []string) ([][]*pipeline.Parked, error) {
	list := make([][]*pipeline.Parked, len(stores))
	if len(ids) == 0 {
		now := time.Now()
		for i, s := range stores {
			err := f.parkedOn(ctx, s, func(m *pipeline.Parked) bool {
				if f.chooses(m, now) {
					list[i] = append(list[i], m)
				}
				return ctx.Err() == nil
			})
			if err := errors.Join(err, context.Cause(ctx)); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	var names []string
	for _, p := range f.chosen {
		names = append(names, p.Name)
	}
	var missing []error
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			continue
		}
		found := false
		for i, s := range stores {
			m, err := s.letters.Get(ctx, id)
			switch {
			case errors.Is(err, pipeline.ErrNotParked):
			case err != nil:
				return nil, fmt.Errorf("read the parked messages of %s: %w", s.spec.Name, term.InOneLine(err))
			case m.Pipeline == s.spec.Name:
				list[i], found = append(list[i], m), true
			}
		}
		if !found {
			missing = append(missing, fmt.Errorf("%s is not a parked message of %s: semel parked ls lists them", term.DisplayText(id), strings.Join(names, ", ")))
		}
	}
	return list, errors.Join(missing...)
}

// isMissing reports whether a message has no key.
func isMissing(m *pipeline.Parked) bool { return m.Key.ID == "" }

// displayKey shows the key of a message to people.
func displayKey(m *pipeline.Parked) string {
	if isMissing(m) {
		return "(no key)"
	}
	return keyrecord.DisplayID(m.Key.ID)
}
