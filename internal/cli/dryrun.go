package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/wiring"
)

func newDryRunCommand(a *app) *cobra.Command {
	var limit, samples int64
	var period time.Duration
	cmd := &cobra.Command{
		Use:   "dry-run FILE [PIPELINE]",
		Short: "Read and decide, and write nothing: what would a pipeline drop?",
		Example: `semel dry-run backfill.yaml
semel dry-run backfill.yaml lines --limit 1e6 --json`,
		Long: `Reads what the source of a pipeline holds, from the beginning, and says what would
become of the messages: how many are new, how many would be dropped, with some of
them, and how many have no key. It compares them with each other and with the keys in
the pipeline's store, where there is one that can be looked into.

Nothing is claimed, written or acknowledged, no position is moved and no consumer
group is joined. A source to which messages come by themselves, as http, cannot be
read beforehand: "observe: true" in the pipeline counts in its place.

The exit status is 3 if a message would be dropped or put aside.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef("FILE is missing: name the configuration")
			case len(args) > 2:
				return usagef("unexpected argument %q: this verb takes FILE and PIPELINE", args[2])
			}
			return nil
		},
		RunE: a.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
			var conf *config.File
			var chosen []*config.Pipeline
			if len(args) > 0 {
				if conf = a.readConfig(args[0], &wrong); conf != nil {
					chosen = choosePipelines(conf, args[1:], &wrong)
				}
			}
			if limit == 0 {
				wrong.addf("--limit 0: read at least one message")
			}
			if period <= 0 {
				wrong.addf("--for %s: read for at least a moment, such as 10s", period)
			}
			if err := wrong.err(); err != nil {
				return err
			}
			var failures []error
			found := false
			for i, p := range chosen {
				d := &dryRun{app: a, conf: conf, spec: p, limit: limit, samples: int(samples), period: period}
				if err := d.do(cmd.Context(), args[0]); err != nil {
					failures = append(failures, fmt.Errorf("%s: %w", p.Name, inOneLine(err)))
					continue
				}
				if err := d.print(i > 0); err != nil {
					return err
				}
				found = found || d.found()
			}
			if cmd.Context().Err() != nil {
				return context.Cause(cmd.Context())
			}
			if err := errors.Join(failures...); err != nil || !found {
				return err
			}
			return errFound
		}),
	}
	countVar(cmd.Flags(), &limit, "limit", "10000", "most messages to read of a pipeline")
	countVar(cmd.Flags(), &samples, "samples", "5", "most messages to show of a kind")
	addParsed(cmd.Flags(), &period, "for", "10s", "DUR", "how long to read at most", schema.ParseDuration)
	return cmd
}

// dryRun is the forecast for the messages of one pipeline.
type dryRun struct {
	*app
	conf    *config.File
	spec    *config.Pipeline
	limit   int64
	samples int
	period  time.Duration

	read   int64
	count  map[string]int64
	shown  map[string][]drySample
	ended  string // why reading ended
	unseen string // why the store was not read
}

// drySample is a message that would be dropped or parked.
type drySample struct {
	placed
	Key string `json:"key,omitempty"`
	// FirstSeen is when the store first saw its key. First is the message in this
	// reading that has the same key.
	FirstSeen string  `json:"first_seen,omitempty"`
	First     *placed `json:"first,omitempty"`
	Error     string  `json:"error,omitempty"`
}

// placed is the place of a message.
type placed struct {
	Source    string `json:"source"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

func (p placed) String() string { return fmt.Sprintf("%s %d/%d", p.Source, p.Partition, p.Offset) }

// Possible outcomes of a message.
const (
	dryFresh     = "fresh"
	dryDuplicate = "duplicate"
	dryMismatch  = "mismatch"
	dryLate      = "late"
	dryInFlight  = "in_flight"
	dryUnknown   = "unknown"
	dryMissing   = "missing"
)

func dryKinds() []string {
	return []string{dryFresh, dryDuplicate, dryMismatch, dryLate, dryInFlight, dryUnknown, dryMissing}
}

// do reads and decides messages.
func (d *dryRun) do(ctx context.Context, file string) error {
	d.count, d.shown = map[string]int64{}, map[string][]drySample{}
	f, reasons := (&parkedFlags{app: d.app, file: file, conf: d.conf}).storeOf(d.spec)
	if len(reasons) > 0 {
		d.unseen = strings.Join(reasons, "; ")
		return d.decideAll(ctx, nil)
	}
	return f.withStore(ctx, d.app, func(store semel.Store) error {
		looker, err := able[semel.Looker](f, store, "look keys up")
		if err != nil {
			return err
		}
		return d.decideAll(ctx, looker)
	})
}

func (d *dryRun) decideAll(ctx context.Context, looker semel.Looker) error {
	j := newDryJudge(d, looker)
	limited, cancel := context.WithTimeout(ctx, d.period)
	defer cancel()
	d.ended = "all there is"
	var failed error
	err := wiring.Sample(limited, d.conf, d.spec, func(m *semel.Message) bool {
		d.read++
		if j.add(m); len(j.batch) >= 500 {
			failed = j.decide(ctx)
		}
		if d.read >= d.limit {
			d.ended = "--limit"
		}
		return failed == nil && d.read < d.limit
	})
	if err == nil && failed == nil {
		failed = j.decide(ctx)
	}
	if limited.Err() != nil && d.ended != "--limit" {
		d.ended = "--for"
	}
	return errors.Join(err, failed)
}

// found reports whether a message would be dropped or parked.
func (d *dryRun) found() bool {
	for kind, n := range d.count {
		switch {
		case n == 0, kind == dryFresh, kind == dryInFlight:
		case kind == dryMissing && (d.spec.Key.OnMissing == "pass" || d.spec.Key.OnMissing == "hash"):
		default:
			return true
		}
	}
	return false
}

// fate says what the pipeline does with a message of this kind.
func (d *dryRun) fate(kind string) string {
	fates := map[string]string{"park": "put aside", "drop": "dropped", "stop": "the pipeline would end", "fail": "the pipeline would end", "pass": "processed, with its place as its key", "hash": "processed, with its content as its key"}
	switch kind {
	case dryDuplicate:
		if d.spec.Observe {
			return "processed all the same: observe is true"
		}
		return "dropped"
	case dryMismatch:
		return fates[d.spec.OnMismatch]
	case dryLate:
		return fates[d.spec.OnLate]
	case dryInFlight:
		return "wait for the process that has the key"
	case dryUnknown:
		return "put aside"
	case dryMissing:
		return fates[d.spec.Key.OnMissing]
	}
	return "processed"
}

// dryLine is a report in JSON.
type dryLine struct {
	Pipeline string                 `json:"pipeline"`
	Read     int64                  `json:"read"`
	Ended    string                 `json:"ended"`
	Count    map[string]int64       `json:"count"`
	Samples  map[string][]drySample `json:"samples"`
	Unseen   string                 `json:"unseen,omitempty"`
}

func (d *dryRun) print(further bool) error {
	for _, kind := range dryKinds() {
		d.count[kind] += 0 // report each kind, even if there are none
	}
	if d.asJSON {
		return d.printJSON(dryLine{d.spec.Name, d.read, d.ended, d.count, d.shown, d.unseen})
	}
	var text strings.Builder
	if further {
		text.WriteString("\n")
	}
	fmt.Fprintf(&text, "%s: read %s, until %s\n", d.spec.Name, formatCount(d.read), d.ended)
	if d.unseen != "" {
		fmt.Fprintf(&text, "  compared with each other alone: %s\n", displayText(d.redact(d.unseen)))
	}
	for _, kind := range dryKinds() {
		if n := d.count[kind]; n > 0 || kind == dryFresh || kind == dryDuplicate {
			fmt.Fprintf(&text, "  %-10s %12s  %s\n", strings.ReplaceAll(kind, "_", " "), formatCount(n), d.fate(kind))
		}
		for _, s := range d.shown[kind] {
			line := "    " + s.String()
			if s.Key != "" {
				line += "  " + s.Key
			}
			switch {
			case s.First != nil:
				line += ": as " + s.First.String()
			case s.FirstSeen != "":
				line += ": first seen " + s.FirstSeen
			case s.Error != "":
				line += ": " + s.Error
			}
			text.WriteString(oneLine(line) + "\n")
		}
	}
	_, err := d.stdout.Write([]byte(text.String()))
	return err
}
