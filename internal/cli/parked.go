package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/wiring"
	"github.com/semel-dev/semel/pipeline"
)

// parkedFlags select parked messages.
type parkedFlags struct {
	*app
	file, pipeline string

	// The filters.
	because string // the reason why they were parked
	ids     []string
	choice  keyFlags
	older   time.Duration
	all     bool

	conf   *config.File
	chosen []*config.Pipeline
	keys   []semel.Key

	unreadable error // messages that parkedOn could not read
}

func newParkedCommand(a *app) *cobra.Command {
	f := &parkedFlags{app: a}
	cmd := newGroup(a, &cobra.Command{
		Use:   "parked VERB --config FILE",
		Short: "Look at messages that were put aside, and settle them",
		Example: `semel parked ls --config pipelines.yaml
semel parked retry --all --config pipelines.yaml
semel parked skip 9f2c41d07be35a1186c0de42 --reason "a test of ours" --config pipelines.yaml`,
		Long: `Looks at the messages that the pipelines of a configuration put aside, and settles
them: retry processes them again through their keys, skip gives them up, done says
that they had their effect.

A pipeline puts a message aside with its headers, where it came from, and a reason:
attempts (the last one failed), permanent (the target refused it for good), late,
mismatch (its key was used with another body), unknown (whether it had its effect is
not known), key-missing or key-invalid.

Those in a topic of Kafka have the id TOPIC/PARTITION/OFFSET. They stay in the topic
until its retention ends; those that were settled are noted in a topic beside it,
the name of which ends with -settled, and are not listed any more.`,
	})
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.file, "config", "", "configuration `FILE` that has the pipelines")
	flags.StringVar(&f.pipeline, "pipeline", "", "only what the pipeline of this `NAME` put aside (default all)")
	completeValues(cmd, "pipeline")
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
	flags.StringVar(&f.because, because, "", "only those put aside for `REASON`: "+strings.Join(parkedReasons(), ", "))
	flags.StringArrayVar(&f.ids, "key", nil, "only those with the key `ID`; repeat it for a composite key")
	addParsed(flags, &f.older, "older", "", "DUR", "only those put aside longer ago than this", schema.ParseDuration)
	f.choice.add(cmd)
	completeValues(cmd, because, parkedReasons()...)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// addChoice adds the flags of a verb that settles messages. Such a verb requires
// a selection.
func (f *parkedFlags) addChoice(cmd *cobra.Command, because string) {
	f.addFilters(cmd, because)
	cmd.Flags().BoolVar(&f.all, "all", false, "all that are there")
}

// check validates the flags. If settles is set, messages must be selected.
func (f *parkedFlags) check(ids []string, settles bool, p *problems) {
	filtered := f.because != "" || len(f.ids) > 0 || f.older != 0
	switch {
	case len(ids) > 0 && (filtered || f.all):
		p.addf("IDs and filters exclude each other: name the messages, or choose them")
	case f.all && filtered:
		p.addf("--all and filters exclude each other: leave --all out")
	case settles && len(ids) == 0 && !filtered && !f.all:
		p.addf("which messages? Name their IDs, choose with --key, --older and the like, or say --all")
	}
	if f.because != "" && !slices.Contains(parkedReasons(), f.because) {
		p.addf("the reason %q: %s", f.because, schema.OneOf(f.because, parkedReasons()))
	}
	if len(f.ids) > 0 {
		f.keys = f.choice.keys("", f.ids, p)
	}
	if f.file == "" {
		p.addf("--config FILE is missing: name the configuration")
		return
	}
	if f.conf = f.readConfig(f.file, p); f.conf == nil {
		return
	}
	var names []string
	if f.pipeline != "" {
		names = []string{f.pipeline}
	}
	f.chosen = choosePipelines(f.conf, names, p)
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
	var stores []deadLetters
	var unopened error // errors of topics that could not be opened
	defer func() {
		for _, s := range stores {
			err = errors.Join(err, s.letters.Close())
		}
	}()
	for _, p := range f.chosen {
		patient, cancel := context.WithTimeout(ctx, f.patience)
		letters, ok, err := wiring.ExistingDeadLetters(patient, f.conf, p)
		cancel()
		if err != nil {
			err = advised(ctx, f.conf.Stack(p.Parked.Store.Name), fmt.Errorf("open what %s put aside: %w", p.Name, inOneLine(err)))
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
		err = fmt.Errorf("look at what %s put aside: %w", s.spec.Name, inOneLine(err))
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
				return nil, fmt.Errorf("look at what %s put aside: %w", s.spec.Name, inOneLine(err))
			case m.Pipeline == s.spec.Name:
				list[i], found = append(list[i], m), true
			}
		}
		if !found {
			missing = append(missing, fmt.Errorf("%s is not among what %s put aside: semel parked ls lists what is", displayText(id), strings.Join(f.names(), ", ")))
		}
	}
	return list, errors.Join(missing...)
}

func (f *parkedFlags) names() []string {
	names := make([]string, len(f.chosen))
	for i, p := range f.chosen {
		names[i] = p.Name
	}
	return names
}

// isMissing reports whether a message has no key.
func isMissing(m *pipeline.Parked) bool { return m.Key.ID == "" }

// displayKey shows the key of a message to people.
func displayKey(m *pipeline.Parked) string {
	if isMissing(m) {
		return "(no key)"
	}
	return displayID(m.Key.ID)
}
