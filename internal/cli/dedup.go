package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/dedup"
)

// newDedupCommand builds the dedup command.
func newDedupCommand(a *app) *cobra.Command {
	var opts dedup.Options
	var rate lossyRate
	var threads int64
	cmd := &cobra.Command{
		Use:   "dedup [FILE...]",
		Short: "Keep the first line of each key",
		Example: `semel dedup --key .event_id examples/events.jsonl > clean.jsonl
zcat logs/*.gz | semel dedup --key .user.id --key .order_id --window 24h --store ./seen > fresh.jsonl
semel dedup --key 'hash(.)' --store ./seen --output clean.jsonl --duplicates dups.jsonl day-*.jsonl`,
		Long: `Reads lines from files or standard input, keeps the first of each key, in input
order, and writes it unchanged, byte for byte. gzip and zstd are recognised by
content. CSV and TSV have a header line, which is kept once.

A key is a path into a JSON line (.a.b, .items[0].id, .["odd.name"]), a CSV
column (.name), the whole line (line), or content whatever its spelling
(hash(.), hash(.a,.b)). Several keys make one composite key.

With --store and --output and inputs that are files, a run that was killed goes
on where it stopped when the same command is run again, and the outputs end as
if nothing had happened. Between pipes, lines may come again after a crash, but
none is lost.`,
		RunE: a.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
			refuseEmpty(cmd, "scope", &wrong)
			if slices.Contains(args, "") {
				wrong.addf("%s", emptyInput)
			}
			if opts.Report == dedup.Stdio {
				wrong.addf("--report -: standard output is for the fresh lines: name a file, or /dev/stderr")
				opts.Report = ""
			}
			opts.Inputs = slices.DeleteFunc(args, func(name string) bool { return name == "" })
			opts.Keys = slices.DeleteFunc(opts.Keys, func(rule string) bool { return !likeRule(rule, &wrong) })
			opts.Threads = int(threads)
			opts.Lossy = float64(rate)
			opts.Problems = wrong
			return a.dedup(cmd.Context(), &opts)
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVarP(&opts.Keys, "key", "k", nil, "`RULE` that makes lines the same; repeat it for a composite key (default line)")
	flags.StringVar((*string)(&opts.Format), "format", string(dedup.Auto), "`FORMAT` of the inputs: auto, jsonl, text, csv or tsv; auto goes by file name, then by the first byte")
	flags.StringVar(&opts.Store, "store", "", "remember keys across runs in the embedded store in `DIR` (default in memory, for this run)")
	flags.StringVar(&opts.Scope, "scope", "default", "`NAME` of the key space in the store")
	windowVar(flags, &opts.Window, "window", "forever", "how long a key is remembered: 36h, 7d or forever")
	flags.StringVarP(&opts.Output, "output", "o", dedup.Stdio, "`FILE` for the fresh lines; - is standard output")
	flags.BoolVar(&opts.Append, "append", false, "go on after what an output holds that the store did not write")
	flags.BoolVar(&opts.Force, "force", false, "start such an output anew, and an unfinished run whose inputs or outputs changed from its beginning; lines whose keys the store knows are not written again")
	flags.StringVar(&opts.Duplicates, "duplicates", "", "also keep the lines that are dropped, in `FILE`")
	flags.StringVar((*string)(&opts.OnMissing), "on-missing", string(dedup.MissingFail), "`WHAT` to do with a line that has no key: fail, reject, pass, or hash its content")
	flags.StringVar((*string)(&opts.OnMismatch), "on-mismatch", string(dedup.MismatchDrop), "`WHAT` to do with a known key and other content: drop, reject or pass")
	flags.StringVar(&opts.Rejected, "rejected", "", "`FILE` for the lines that are rejected")
	flags.StringVar(&opts.Report, "report", "", "write the counts as JSON to `FILE`")
	addParsed(flags, &rate, "lossy", "", "RATE", "use a filter of fixed size, which may drop new lines at this rate (needs --expect)", parseLossyRate)
	addParsed(flags, &opts.Expect, "expect", "", "N", "number of different keys the filter is made for", parseExpect)
	countVar(flags, &threads, "threads", "", "number of workers (default one for each CPU)")
	completeValues(cmd, "key", "line", "hash(.)")
	completeValues(cmd, "format", names(dedup.Auto, dedup.JSONL, dedup.Text, dedup.CSV, dedup.TSV)...)
	completeDirs(cmd, "store")
	completeValues(cmd, "window", "forever")
	completeValues(cmd, "on-missing", names(dedup.MissingFail, dedup.MissingReject, dedup.MissingPass, dedup.MissingHash)...)
	completeValues(cmd, "on-mismatch", names(dedup.MismatchDrop, dedup.MismatchReject, dedup.MismatchPass)...)
	for _, name := range []string{"scope", "lossy", "expect", "threads"} {
		completeValues(cmd, name)
	}
	return cmd
}

func names[T fmt.Stringer](values ...T) []string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = value.String()
	}
	return texts
}

// lossyRate is the rate of --lossy, as a number or a percentage.
type lossyRate float64

// dedupGC is the GC percentage, unless GOGC is set. Nearly all memory is one
// table without pointers. Collecting eight times as often as by default therefore
// costs no measurable time and saves a third of the memory.
const dedupGC = 12

// dedup runs the command.
func (a *app) dedup(ctx context.Context, opts *dedup.Options) error {
	if a.env("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(dedupGC))
	}
	opts.Stdin, opts.Stdout = a.stdin, a.stdout
	if len(opts.Problems) > 0 {
		opts.Stdin = nil // there is nothing to read or wait for
	}
	opts.Note = func(text string) { a.note("semel dedup: %s", text) }
	run, err := dedup.Prepare(ctx, opts)
	if err != nil {
		return dedupError(err)
	}
	stop := a.startProgress(func() progress { return dedupProgress(run.Progress()) })
	report, err := run.Do(ctx)
	stop()
	switch {
	case err == nil, ctx.Err() != nil && !errors.Is(err, errReaderGone):
		summary := dedupSummary(report)
		if a.asJSON { // stderr as well, because stdout has the lines
			line, jsonErr := json.Marshal(report)
			if err = errors.Join(err, jsonErr); jsonErr == nil {
				summary = string(line)
			}
		}
		a.note("%s", summary)
	}
	return dedupError(err)
}

// dedupError maps the engine's errors to exit statuses.
func dedupError(err error) error {
	var refused *dedup.RefusedError
	if errors.As(err, &refused) {
		return &UsageError{Problems: refused.Problems}
	}
	return err
}

func dedupProgress(p dedup.Progress) progress {
	share := -1.0
	if p.Total > 0 {
		share = min(1, float64(p.Done)/float64(p.Total))
	}
	return progress{Done: p.Read, Unit: "lines", Share: share}
}

// dedupSummary returns the last line on stderr, which scripts read.
func dedupSummary(r dedup.Report) string {
	rate := 0.0
	if r.ElapsedSeconds > 0 {
		rate = float64(r.Read) / r.ElapsedSeconds
	}
	return fmt.Sprintf("read %s  fresh %s  duplicates %s  mismatched %s  rejected %s  in %.1f s (%s lines/s)",
		formatCount(r.Read), formatCount(r.Fresh), formatCount(r.Duplicate), formatCount(r.Mismatch),
		formatCount(r.Rejected), r.ElapsedSeconds, formatRate(rate))
}
