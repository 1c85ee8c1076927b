// Package dedupcmd is the verb dedup.
package dedupcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/dedup"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/stream"
)

// New builds the dedup command.
func New(a *term.App) *cobra.Command {
	var opts dedup.Options
	var unit stream.TimeUnit
	var rate lossyRate
	var threads int64
	cmd := &cobra.Command{
		Use:   "dedup [FILE...]",
		Short: "Keep the first line of each key",
		Example: `semel dedup --key .event_id examples/events.jsonl > clean.jsonl
zcat logs/*.gz | semel dedup --key .user.id --key .order_id --window 24h --store ./seen > fresh.jsonl
semel dedup --key 'hash(.)' --store ./seen --output clean.jsonl --duplicates dups.jsonl day-*.jsonl`,
		Long: `Reads lines from files or standard input and writes the first line of each key,
in input order, byte for byte. It detects gzip and zstd by content. CSV and TSV
have a header line, which is written once, unless --no-header is set. With
--format json, the elements of arrays and documents that span lines are lines.

A key is a path into a JSON line (.a.b, .items[0].id, .["odd.name"]), a CSV
column (.name), the whole line (line), or the content regardless of its spelling
(hash(.), hash(.a,.b), hash(. - .received)). lower(.a), trim(.a), nfc(.a) and
number(.a) ignore case, white space at the ends, Unicode composition, and the
spelling of a number. Several keys make one composite key.

With --store, --output and inputs that are files, the same command resumes a run
that was killed, and the outputs are the same as without the interruption.
Between pipes, lines may repeat after a crash, but none is lost.`,
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			term.RefuseEmpty(cmd, "scope", &wrong)
			term.RefuseEmpty(cmd, "time", &wrong)
			if unit != stream.AnyUnit && opts.Time == "" {
				wrong.Addf("--time-unit %s is the unit of a time in the line: add --time PATH", unit)
			}
			opts.ParseTime = timesOf(unit)
			if slices.Contains(args, "") {
				wrong.Addf("%s", term.EmptyInput)
			}
			if opts.Report == dedup.Stdio {
				wrong.Addf("--report -: standard output is for the fresh lines: name a file, or /dev/stderr")
				opts.Report = ""
			}
			opts.Inputs = slices.DeleteFunc(args, func(name string) bool { return name == "" })
			opts.Keys = slices.DeleteFunc(opts.Keys, func(rule string) bool { return !likeRule(rule, &wrong) })
			opts.Threads = int(threads)
			opts.Lossy = float64(rate)
			opts.Problems = wrong
			chosen := cmd.Flags().Changed("on-mismatch")
			return runDedup(cmd.Context(), a, &opts, chosen)
		}),
	}
	addFlags(cmd, &opts, &unit, &rate, &threads)
	addCompletions(cmd)
	return cmd
}

// addFlags adds the flags, in the order of the help.
func addFlags(cmd *cobra.Command, opts *dedup.Options, unit *stream.TimeUnit, rate *lossyRate, threads *int64) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVarP(&opts.Keys, "key", "k", nil, "`RULE` for the key of a line; repeat it for a composite key (default line)")
	flags.StringVar((*string)(&opts.Format), "format", string(dedup.Auto), "`FORMAT` of the inputs: auto (by file name, then by the first byte), jsonl, json (arrays, and documents that span lines), text, csv or tsv")
	term.AddParsed(flags, &opts.Delimiter, "delimiter", "", "CHAR", "separator of CSV fields, such as ';' or tab (default a comma)", parseDelimiter)
	flags.BoolVar(&opts.NoHeader, "no-header", false, "CSV and TSV have no header line; their columns are .1, .2 and so on")
	flags.StringVar((*string)(&opts.Keep), "keep", string(dedup.KeepFirst), "`LINE` of each key to keep: first; last; or none, which writes only lines whose key occurs once. Last and none read the files twice")
	flags.StringVar(&opts.Store, "store", "", "remember keys across runs in the embedded store in `DIR` (default in memory, for this run)")
	flags.BoolVar(&opts.Again, "again", false, "read inputs that a finished run of the same command read; without it, only what is new is read")
	flags.StringVar(&opts.Scope, "scope", "default", "`NAME` of the key space in the store")
	flags.BoolVar(&opts.SameScope, "same-scope", false, "use a scope that was filled with another --key, because both find the same ids")
	term.WindowVar(flags, &opts.Window, "window", "forever", "how long a key is remembered: 36h, 7d or forever; the clock of the run counts, not a time in the line, unless --time is there")
	flags.StringVar(&opts.Time, "time", "", "`PATH` of the time in a line, by which --window counts: a line within the window of a kept line of its key is a duplicate")
	term.AddParsed(flags, unit, "time-unit", "", "UNIT", "how --time is written: s, ms, us or ns since 1970, or rfc3339 (default by its form and size)", parseTimeUnit)
	flags.StringVarP(&opts.Output, "output", "o", dedup.Stdio, "`FILE` for the fresh lines; - is standard output; .gz and .zst are compressed")
	flags.BoolVar(&opts.Append, "append", false, "append to an output with content that the store did not write")
	flags.BoolVar(&opts.Force, "force", false, "replace such an output, and restart an unfinished run whose files changed; lines with known keys are not written again")
	flags.StringVar(&opts.Duplicates, "duplicates", "", "write the dropped lines to `FILE`")
	flags.BoolVar(&opts.Why, "why", false, "write the lines of --duplicates as JSON objects: where the kept line and the dropped one stand, and what differs")
	flags.StringVar((*string)(&opts.OnMissing), "on-missing", string(dedup.MissingFail), "`ACTION` for a line without a key: fail, reject, pass, or hash its content")
	flags.StringVar((*string)(&opts.OnMismatch), "on-mismatch", string(dedup.MismatchDrop), "`ACTION` for a known key with other content: drop, reject or pass")
	flags.StringVar(&opts.Rejected, "rejected", "", "`FILE` for rejected lines")
	flags.StringVar(&opts.Report, "report", "", "write the counts as JSON to `FILE`")
	term.AddParsed(flags, rate, "lossy", "", "RATE", "use a filter of fixed size, which may drop new lines at this rate (needs --expect)", parseLossyRate)
	term.AddParsed(flags, &opts.Expect, "expect", "", "N", "number of different keys that the filter must hold", parseExpect)
	term.AddParsed(flags, &opts.Memory, "memory", "", "SIZE", "about how much memory a run without a store may take, at least 64MiB; keys beyond that go to disk, in the directory that TMPDIR names (default all in memory)", schema.ParseSize)
	term.CountVar(flags, threads, "threads", "", "number of workers (default one for each CPU)")
}

// addCompletions says what a shell completes.
func addCompletions(cmd *cobra.Command) {
	term.CompleteValues(cmd, "key", "line", "hash(.)")
	term.CompleteValues(cmd, "format", names(dedup.Auto, dedup.JSONL, dedup.JSON, dedup.Text, dedup.CSV, dedup.TSV)...)
	term.CompleteValues(cmd, "delimiter", ";", "tab", "|")
	term.CompleteValues(cmd, "keep", names(dedup.KeepFirst, dedup.KeepLast, dedup.KeepNone)...)
	term.CompleteValues(cmd, "time-unit", "s", "ms", "us", "ns", "rfc3339")
	term.CompleteDirs(cmd, "store")
	term.CompleteValues(cmd, "window", "forever")
	term.CompleteValues(cmd, "on-missing", names(dedup.MissingFail, dedup.MissingReject, dedup.MissingPass, dedup.MissingHash)...)
	term.CompleteValues(cmd, "on-mismatch", names(dedup.MismatchDrop, dedup.MismatchReject, dedup.MismatchPass)...)
	for _, name := range []string{"scope", "time", "lossy", "expect", "memory", "threads"} {
		term.CompleteValues(cmd, name)
	}
}

func names[T ~string](values ...T) []string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = string(value)
	}
	return texts
}

// lossyRate is the rate of --lossy, as a number or a percentage.
type lossyRate float64

// dedupGC is the GC percentage, unless GOGC is set. Nearly all memory is one
// table without pointers. Collecting eight times as often as by default therefore
// costs no measurable time. With a window it saves a third of the memory, because
// that table grows by copies.
const dedupGC = 12

// runDedup runs the command. If --on-mismatch was chosen, no note recommends another.
func runDedup(ctx context.Context, a *term.App, opts *dedup.Options, chosen bool) error {
	if a.Env("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(dedupGC))
	}
	releasePages()
	opts.Stdin, opts.Stdout = a.Stdin, a.Stdout
	readsStdin := len(opts.Inputs) == 0 || slices.Contains(opts.Inputs, dedup.Stdio)
	if len(opts.Problems) == 0 && opts.Keep == dedup.KeepFirst && readsStdin && a.AwaitsInput() {
		a.Note("semel dedup: reading lines from this terminal: end them with Ctrl-D, or press Ctrl-C and name files")
	}
	opts.Note = func(text string) { a.Note("semel dedup: %s", text) }
	sizes := outputSizes(opts)
	run, err := dedup.Prepare(ctx, opts)
	if err != nil {
		return dedupError(err)
	}
	before := run.Progress()
	stop := a.StartProgress(func() term.Progress { return dedupProgress(run.Progress(), before) })
	report, err := run.Do(ctx)
	stop()
	switch {
	case err == nil, ctx.Err() != nil && !errors.Is(err, term.ErrReaderGone):
		summary := dedupSummary(report)
		if !a.JSON {
			if !chosen {
				noteDiffering(a, opts, report)
			}
			noteClock(a, opts, report)
		} else { // stderr as well, because stdout has the lines
			line, jsonErr := json.Marshal(report)
			if err = errors.Join(err, jsonErr); jsonErr == nil {
				summary = string(line)
			}
		}
		a.Note("%s", summary)
	}
	if text := afterInterruption(opts, report, sizes); text != "" && err != nil && ctx.Err() != nil {
		err = &term.InterruptedError{Err: err, Text: text}
	}
	return dedupError(err)
}

// afterInterruption says how to continue after an interrupted run, or returns "" if the same
// command resumes it. sizes are those of the outputs before the run.
func afterInterruption(opts *dedup.Options, r dedup.Report, sizes map[string]int64) string {
	text := "interrupted after " + term.FormatCount(r.Read) + " lines: "
	switch written := slices.Sorted(maps.Keys(outputSizes(opts))); {
	case opts.Store != "" && opts.Output != dedup.Stdio:
		return ""
	case opts.Store != "":
		return text + "the fresh ones were written to standard output, and the next run does not write them again. To resume, append to the same file with >> FILE (> FILE empties it first); with --output FILE, the same command resumes"
	case len(written) == 0:
		return text + "without --store, the next run begins again"
	case opts.Append && !opts.Force:
		for i, name := range written {
			written[i] = fmt.Sprintf("%s to %d bytes", name, sizes[name])
		}
		return text + "without --store, the next run begins again, and --append would write these lines twice: cut the content of this run off first: " + strings.Join(written, ", ")
	default:
		return text + "without --store, the next run begins again: add --force, so that it replaces " + strings.Join(written, ", ")
	}
}

// outputSizes returns the sizes of the outputs that are files with content.
func outputSizes(opts *dedup.Options) map[string]int64 {
	sizes := map[string]int64{}
	for _, name := range []string{opts.Output, opts.Duplicates, opts.Rejected} {
		if info, err := os.Stat(name); name != dedup.Stdio && err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			sizes[name] = info.Size()
		}
	}
	return sizes
}

// dedupError maps the engine's errors to exit statuses.
func dedupError(err error) error {
	var refused *dedup.RefusedError
	if errors.As(err, &refused) {
		return &term.UsageError{Problems: refused.Problems}
	}
	return err
}

// dedupProgress returns the progress of a run that began with before.
func dedupProgress(p, before dedup.Progress) term.Progress {
	shown := term.Progress{Done: p.Read, Unit: "lines", Share: -1, Before: before.Read}
	if p.Total > 0 {
		shown.Share = min(1, float64(p.Done)/float64(p.Total))
		shown.ShareBefore = min(1, float64(before.Done)/float64(p.Total))
	}
	return shown
}

// dedupSummary returns the last line on stderr, which scripts read.
func dedupSummary(r dedup.Report) string {
	missing, rate := "", ""
	if r.Missing > 0 {
		missing = "  missing " + term.FormatCount(r.Missing)
	}
	if r.ElapsedSeconds >= term.LeastRated.Seconds() && float64(r.Read) >= r.ElapsedSeconds { // it may have compared more than it read
		rate = fmt.Sprintf(" (%s lines/s)", term.FormatRate(float64(r.Read)/r.ElapsedSeconds))
	}
	return fmt.Sprintf("read %s  fresh %s  duplicates %s  mismatched %s  rejected %s%s  in %.1f s%s",
		term.FormatCount(r.Read), term.FormatCount(r.Fresh), term.FormatCount(r.Duplicate), term.FormatCount(r.Mismatch),
		term.FormatCount(r.Rejected), missing, r.ElapsedSeconds, rate)
}

// noteClock says that a window does not go by the times in a file, which people expect
// of a short one.
func noteClock(a *term.App, opts *dedup.Options, r dedup.Report) {
	files := slices.ContainsFunc(opts.Inputs, func(name string) bool { return name != dedup.Stdio })
	if files && opts.Time == "" && r.Duplicate > 0 && opts.Window != 0 && opts.Window != semel.Forever {
		a.Note("semel dedup: --window %s counts by the clock of the runs, not by a time in the lines: lines of one run are duplicates, however far apart their times are", schema.Duration(opts.Window))
	}
}

// noteDiffering says that lines were dropped although they differ from the
// lines that were kept.
func noteDiffering(a *term.App, opts *dedup.Options, r dedup.Report) {
	if r.Mismatch == 0 || opts.OnMismatch != dedup.MismatchDrop {
		return
	}
	differ := term.FormatCount(r.Mismatch) + " duplicates differ in content from the line that was kept"
	if r.Mismatch == 1 {
		differ = "1 duplicate differs in content from the line that was kept"
	}
	const reject = "--on-mismatch reject --rejected FILE"
	if opts.Duplicates != "" {
		a.Note("semel dedup: %s: %s has them among all duplicates, and %s keeps them apart", differ, opts.Duplicates, reject)
		return
	}
	a.Note("semel dedup: %s: %s keeps them", differ, reject)
}
