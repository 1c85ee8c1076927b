package dedup

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// Stdio is the name of standard input among inputs and of standard output as
// an output.
const Stdio = "-"

// MaxLine is the longest line, without its line end, that is read.
const MaxLine = 64 << 20

// Format says how an input is divided into lines and where their keys are.
type Format string

const (
	// Auto goes by the name of each input, then by its first byte.
	Auto Format = "auto"
	// JSONL is one JSON document a line.
	JSONL Format = "jsonl"
	// Text is lines of any bytes.
	Text Format = "text"
	// CSV is RFC 4180 with a header; a record may span lines.
	CSV Format = "csv"
	// TSV is CSV with tabs for commas.
	TSV Format = "tsv"
)

// OnMissing says what becomes of a line that has no key.
type OnMissing string

const (
	// MissingFail stops with an error that names the line.
	MissingFail OnMissing = "fail"
	// MissingReject writes the line to the rejected file.
	MissingReject OnMissing = "reject"
	// MissingPass writes the line to the output.
	MissingPass OnMissing = "pass"
	// MissingHash takes the line's content for its key.
	MissingHash OnMissing = "hash"
)

// OnMismatch says what becomes of a line whose key is known with other content.
type OnMismatch string

const (
	// MismatchDrop treats the line as a duplicate.
	MismatchDrop OnMismatch = "drop"
	// MismatchReject writes the line to the rejected file.
	MismatchReject OnMismatch = "reject"
	// MismatchPass writes the line to the output.
	MismatchPass OnMismatch = "pass"
)

// Options say what to read, what makes lines the same, and where they go.
type Options struct {
	// Inputs are files, or [Stdio], read in this order. Defaults to Stdio.
	Inputs []string
	// Format of all inputs. Defaults to Auto.
	Format Format
	// Keys are the key rules; several make one composite key. Defaults to
	// "line".
	Keys []string
	// Store is the directory of the embedded store. Defaults to "", which
	// keeps keys in memory for this run.
	Store string
	// Scope is the key space in the store. Defaults to "default".
	Scope string
	// Window is how long a key is remembered. Must be above 0. Defaults to
	// semel.Forever.
	Window time.Duration
	// Output is the file for the lines that are fresh. Defaults to Stdio.
	Output string
	// Append goes on after what an output holds that the store did not write.
	// Defaults to false.
	Append bool
	// Force starts such an output anew, and an unfinished run whose inputs or
	// outputs changed from its beginning. Keys that are known stay known, so
	// that their lines are not written again. Defaults to false.
	Force bool
	// Duplicates is a file for the lines that are dropped. Defaults to "",
	// which does not keep them.
	Duplicates string
	// Rejected is the file for the lines that are rejected. Must be set if
	// OnMissing or OnMismatch rejects. Defaults to "".
	Rejected string
	// OnMissing is for lines without a key. Defaults to MissingFail.
	OnMissing OnMissing
	// OnMismatch is for lines whose key had other content. Defaults to
	// MismatchDrop.
	OnMismatch OnMismatch
	// Report is a file that the [Report] is written to, as JSON. Defaults to
	// "", which writes none.
	Report string
	// Lossy is the share of new lines that may be taken for duplicates, by a
	// filter of fixed size in place of exact keys. Must be between 0 and 1,
	// and 0 with a Store. Defaults to 0, which is exact.
	Lossy float64
	// Expect is the number of keys that the filter is made for. Must be above
	// 0 if Lossy is. Defaults to 0.
	Expect int64
	// Threads is the number of goroutines that parse. Must be between 0 and
	// 256. Defaults to 0, which is one for each CPU.
	Threads int
	// Problems are what the caller found wrong already. If there are any, they
	// are reported with all others and the run is refused. Defaults to nil.
	Problems []string
	// Stdin and Stdout stand behind Stdio. Default to nil, which is empty and
	// discards.
	Stdin  io.Reader
	Stdout io.Writer
	// Note is told, one line at a time, what people should know that is not
	// an error. Called before and during Do, from one goroutine at a time.
	// Defaults to nil, which tells nobody.
	Note func(text string)

	// blockSize and commitEvery are smaller in tests. failAt is asked before
	// each step that changes something durable.
	blockSize   int
	commitBytes int64
	commitEvery time.Duration
	failAt      func(step string) error
}

const (
	defaultBlockSize   = 256 << 10
	defaultCommitBytes = 64 << 20
	defaultCommitEvery = time.Second

	maxThreads = 256
)

func (o Options) withDefaults() Options {
	if len(o.Inputs) == 0 {
		o.Inputs = []string{Stdio}
	}
	setDefault(&o.Format, Auto)
	if len(o.Keys) == 0 {
		o.Keys = []string{"line"}
	}
	setDefault(&o.Scope, "default")
	setDefault(&o.Window, semel.Forever)
	setDefault(&o.Output, Stdio)
	setDefault(&o.OnMissing, MissingFail)
	setDefault(&o.OnMismatch, MismatchDrop)
	setDefault(&o.Threads, runtime.GOMAXPROCS(0))
	if o.Stdin == nil {
		o.Stdin = strings.NewReader("")
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	setDefault(&o.blockSize, defaultBlockSize)
	setDefault(&o.commitBytes, defaultCommitBytes)
	setDefault(&o.commitEvery, defaultCommitEvery)
	if o.failAt == nil {
		o.failAt = func(string) error { return nil }
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// check finds what is wrong with the options by themselves.
func (o *Options) check(p *problems) {
	p.oneOf("--format", o.Format, Auto, JSONL, Text, CSV, TSV)
	p.oneOf("--on-missing", o.OnMissing, MissingFail, MissingReject, MissingPass, MissingHash)
	p.oneOf("--on-mismatch", o.OnMismatch, MismatchDrop, MismatchReject, MismatchPass)
	if o.Rejected == "" && (o.OnMissing == MissingReject || o.OnMismatch == MismatchReject) {
		p.addf("lines are to be rejected, but there is no place for them: add --rejected FILE")
	}
	if o.Window < 0 {
		p.addf("--window %s: a key cannot be remembered for less than no time", o.Window)
	}
	if o.Threads < 0 || o.Threads > maxThreads {
		p.addf("--threads %d: write a number from 1 to %d", o.Threads, maxThreads)
	}
	if o.Append && o.Force {
		p.addf("--append goes on after what the output holds, --force starts it anew: choose one")
	}
	o.checkLossy(p)
	o.checkStdin(p)
}

func (o *Options) checkLossy(p *problems) {
	switch {
	case o.Lossy == 0 && o.Expect != 0:
		p.addf("--expect is for --lossy RATE: without it keys are exact and need no estimate")
	case o.Lossy != 0 && (o.Lossy < 0 || o.Lossy >= 1):
		p.addf("--lossy %v: a rate is above 0 and below 1, as 0.001", o.Lossy)
	case o.Lossy != 0 && o.Expect <= 0:
		p.addf("--lossy needs --expect N, the number of different keys to make the filter for")
	}
	if o.Lossy != 0 && o.Store != "" {
		p.addf("--lossy and --store exclude each other: a store's keys are exact")
	}
	if o.Lossy != 0 && o.Window != semel.Forever {
		p.addf("--lossy and --window exclude each other: the filter forgets nothing")
	}
	if o.Lossy != 0 && o.OnMismatch != MismatchDrop {
		p.addf("--lossy cannot tell other content: leave --on-mismatch out")
	}
}

func (o *Options) checkStdin(p *problems) {
	stdin := 0
	for _, name := range o.Inputs {
		if name == Stdio {
			stdin++
		}
	}
	if stdin > 1 {
		p.addf("standard input is named %d times: it can be read once", stdin)
	}
}

// RefusedError says why a run was not begun. Nothing was touched.
type RefusedError struct {
	// Problems has one line for each: what, why, and what to do.
	Problems []string
}

// Error implements error.
func (e *RefusedError) Error() string { return "dedup: refused: " + strings.Join(e.Problems, "; ") }

// problems gathers what is wrong, so that all of it is reported at once.
type problems []string

func (p *problems) addf(format string, args ...any) {
	*p = append(*p, fmt.Sprintf(format, args...))
}

func (p *problems) oneOf(flag string, value fmt.Stringer, known ...fmt.Stringer) {
	names := make([]string, len(known))
	for i, k := range known {
		if k == value {
			return
		}
		names[i] = k.String()
	}
	p.addf("%s %q: write one of %s", flag, value.String(), strings.Join(names, ", "))
}

// err returns nil if there are no problems.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return &RefusedError{Problems: p}
}

// String returns the format as the flag has it.
func (f Format) String() string { return string(f) }

// String returns the policy as the flag has it.
func (m OnMissing) String() string { return string(m) }

// String returns the policy as the flag has it.
func (m OnMismatch) String() string { return string(m) }
