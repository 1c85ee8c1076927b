package dedup

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// Stdio is the name of standard input as an input and of standard output as an
// output.
const Stdio = "-"

// MaxLine is the longest line, without its line end, that is read.
const MaxLine = 64 << 20

// Format says how an input is divided into lines and where their keys are.
type Format string

const (
	// Auto uses the name of each input, then its first byte.
	Auto Format = "auto"
	// JSONL has one JSON document on each line.
	JSONL Format = "jsonl"
	// JSON has documents that may span lines and stand behind each other, and arrays, whose
	// elements count. Each becomes a line.
	JSON Format = "json"
	// Text has lines of arbitrary bytes.
	Text Format = "text"
	// CSV is RFC 4180 with a header. A record may span lines.
	CSV Format = "csv"
	// TSV is CSV with tabs instead of commas.
	TSV Format = "tsv"
)

// Keep says which line of a key is kept.
type Keep string

const (
	// KeepFirst keeps the first line of each key.
	KeepFirst Keep = "first"
	// KeepLast keeps the last line of each key. It reads the inputs twice.
	KeepLast Keep = "last"
	// KeepNone keeps the lines whose key occurs once. It reads the inputs twice.
	KeepNone Keep = "none"
)

// OnMissing says what happens to a line without a key.
type OnMissing string

const (
	// MissingFail stops with an error that names the line.
	MissingFail OnMissing = "fail"
	// MissingReject writes the line to the rejected file.
	MissingReject OnMissing = "reject"
	// MissingPass writes the line to the output.
	MissingPass OnMissing = "pass"
	// MissingHash uses the content of the line as its key.
	MissingHash OnMissing = "hash"
)

// OnMismatch says what happens to a line whose key is known with other content.
type OnMismatch string

const (
	// MismatchDrop treats the line as a duplicate.
	MismatchDrop OnMismatch = "drop"
	// MismatchReject writes the line to the rejected file.
	MismatchReject OnMismatch = "reject"
	// MismatchPass writes the line to the output.
	MismatchPass OnMismatch = "pass"
)

// Options are the options of [Prepare]: what to read, which lines are the same,
// and where lines go.
type Options struct {
	// Inputs are files, or [Stdio], which are read in this order. Defaults to
	// Stdio.
	Inputs []string
	// Format is the format of all inputs. Defaults to Auto.
	Format Format
	// Delimiter separates the fields of CSV. It must be an ASCII character other
	// than a quote, a line end and NUL. Defaults to 0, which is that of the
	// Format.
	Delimiter byte
	// NoHeader means that CSV and TSV have no header. The columns are then .1,
	// .2 and so on. Defaults to false.
	NoHeader bool
	// Keys are the key rules. Several rules make one composite key. Defaults to
	// "line".
	Keys []string
	// Keep says which line of a key is kept. KeepLast and KeepNone exclude Store,
	// Window and Lossy, and all inputs must be regular files. Defaults to KeepFirst.
	Keep Keep
	// Store is the directory of the embedded store. Defaults to "", which keeps
	// keys in memory for this run.
	Store string
	// Again reads inputs that a finished run of the same command read. Must have a
	// Store. Defaults to false, which reads only what is new.
	Again bool
	// Scope is the key space in the store. Defaults to "default".
	Scope string
	// SameScope: another rule filled the scope, and both rules find the same ids.
	// Defaults to false, which refuses such a scope.
	SameScope bool
	// Window is how long a key is remembered. Must be above 0. Defaults to
	// semel.Forever.
	Window time.Duration
	// Time is the path of the time in a line, or a CSV column. A line is then a
	// duplicate if a kept line of its key is less than the Window away, before or
	// after. Must have a Window, and excludes Store. Defaults to "", which is the
	// clock.
	Time string
	// ParseTime reads the text of such a time. Must be set if Time is.
	ParseTime func(text []byte) (time.Time, error)
	// Output is the file for fresh lines. It is compressed if its name ends with
	// .gz, .gzip, .zst or .zstd, and so are Duplicates and Rejected. Defaults to
	// Stdio.
	Output string
	// Append continues after content of an output that the store did not write.
	// Defaults to false.
	Append bool
	// Force overwrites such an output. It also restarts an unfinished run whose
	// inputs or outputs changed. Known keys stay known, so their lines are not
	// written again. Defaults to false.
	Force bool
	// Duplicates is a file for dropped lines. Defaults to "", which does not
	// keep them.
	Duplicates string
	// Why makes the lines of Duplicates JSON objects that say which line was kept,
	// where both stand and what differs. Excludes Store, Lossy and KeepNone. Defaults
	// to false.
	Why bool
	// Rejected is the file for rejected lines. Must be set if OnMissing or
	// OnMismatch rejects. Defaults to "".
	Rejected string
	// OnMissing applies to lines without a key. Defaults to MissingFail.
	OnMissing OnMissing
	// OnMismatch applies to lines whose key had other content. Defaults to
	// MismatchDrop.
	OnMismatch OnMismatch
	// Report is the file for the [Report] as JSON. Defaults to "", which writes
	// none.
	Report string
	// Lossy is the share of new lines that may be taken for duplicates. A
	// filter of fixed size then replaces exact keys. Must be between 0 and 1,
	// and 0 with a Store. Defaults to 0, which is exact.
	Lossy float64
	// Expect is the number of keys for which the filter is made. Must be above
	// 0 if Lossy is. Defaults to 0.
	Expect int64
	// Memory is about how many bytes the process may take for a run without a Store. Keys
	// beyond that go to files without names in the directory for temporary files. Must be
	// 0 or at least [LeastMemory], and 0 with Store, Window, Lossy, Why and a Keep other
	// than KeepFirst. Defaults to 0, which keeps all keys in memory.
	Memory int64
	// Threads is the number of goroutines that read, parse and commit. Must be between 0 and
	// 256. Defaults to 0, which is one for each CPU.
	Threads int
	// Problems are problems that the caller has already found. If there are
	// any, Prepare refuses the run and reports them with its own. Defaults to
	// nil.
	Problems []string
	// Stdin and Stdout are the streams of Stdio. Defaults to nil, which is
	// empty and discards.
	Stdin  io.Reader
	Stdout io.Writer
	// Note is called with one line of information at a time, before and during
	// Do, from one goroutine at a time. Defaults to nil, which discards the
	// lines.
	Note func(text string)

	// blockSize and commitEvery are smaller in tests. failAt is called before
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
	if o.Delimiter != 0 && o.Format == Auto {
		o.Format = CSV
	}
	o.Format = cmp.Or(o.Format, Auto)
	if len(o.Keys) == 0 {
		o.Keys = []string{"line"}
	}
	o.Keep = cmp.Or(o.Keep, KeepFirst)
	o.Scope = cmp.Or(o.Scope, "default")
	o.Window = cmp.Or(o.Window, semel.Forever)
	o.Output = cmp.Or(o.Output, Stdio)
	o.OnMissing = cmp.Or(o.OnMissing, MissingFail)
	o.OnMismatch = cmp.Or(o.OnMismatch, MismatchDrop)
	o.Threads = cmp.Or(o.Threads, runtime.GOMAXPROCS(0))
	if o.Stdin == nil {
		o.Stdin = strings.NewReader("")
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	o.blockSize = cmp.Or(o.blockSize, defaultBlockSize)
	o.commitBytes = cmp.Or(o.commitBytes, defaultCommitBytes)
	o.commitEvery = cmp.Or(o.commitEvery, defaultCommitEvery)
	if o.failAt == nil {
		o.failAt = func(string) error { return nil }
	}
	return o
}

// check adds the problems of the options to p.
func (o *Options) check(p *problems) {
	oneOf(p, "--format", o.Format, Auto, JSONL, JSON, Text, CSV, TSV)
	oneOf(p, "--keep", o.Keep, KeepFirst, KeepLast, KeepNone)
	oneOf(p, "--on-missing", o.OnMissing, MissingFail, MissingReject, MissingPass, MissingHash)
	oneOf(p, "--on-mismatch", o.OnMismatch, MismatchDrop, MismatchReject, MismatchPass)
	if o.Delimiter != 0 && o.Format != CSV {
		p.addf("--delimiter is for CSV, and the format is %s: leave out --delimiter or --format", o.Format)
	}
	if strings.IndexByte("\"\r\n", o.Delimiter) >= 0 || o.Delimiter > 0x7f {
		p.addf("--delimiter %q cannot separate fields: write an ASCII character other than a quote or a line end, such as ';' or tab", o.Delimiter)
	}
	if o.Rejected == "" && (o.OnMissing == MissingReject || o.OnMismatch == MismatchReject) {
		p.addf("lines can be rejected, but there is no file for them: add --rejected FILE")
	}
	if o.Window < 0 {
		p.addf("--window %s: write a duration above 0, or forever", o.Window)
	}
	if o.Threads < 0 || o.Threads > maxThreads {
		p.addf("--threads %d: write a number from 1 to %d", o.Threads, maxThreads)
	}
	if o.Append && o.Force {
		p.addf("--append continues after the content of the output and --force overwrites it: choose one")
	}
	if o.Again && o.Store == "" {
		p.addf("--again reads inputs that a store remembers: add --store DIR, or leave it out")
	}
	o.checkKeep(p)
	o.checkTime(p)
	o.checkWhy(p)
	o.checkLossy(p)
	o.checkMemory(p)
	o.checkStdin(p)
}

func (o *Options) checkKeep(p *problems) {
	if !o.twice() {
		return
	}
	if o.Store != "" {
		p.addf("--keep %s and --store exclude each other: a later run cannot take back a line that is written", o.Keep)
	}
	if o.Window != semel.Forever {
		p.addf("--keep %s and --window exclude each other: the line to keep is known only at the end of the inputs", o.Keep)
	}
	if o.Lossy != 0 {
		p.addf("--keep %s and --lossy exclude each other: a filter does not know how often a key comes", o.Keep)
	}
	if slices.Contains(o.Inputs, Stdio) {
		p.addf("--keep %s reads its inputs twice, which standard input does not permit: name files", o.Keep)
	}
	if o.Keep == KeepNone && o.OnMismatch != MismatchDrop {
		p.addf("--keep none and --on-mismatch exclude each other: no line is kept with which another could be compared")
	}
}

// twice reports whether the inputs are read twice.
func (o *Options) twice() bool { return o.Keep == KeepLast || o.Keep == KeepNone }

func (o *Options) checkTime(p *problems) {
	switch {
	case o.Time == "":
	case o.twice():
		p.addf("--keep %s and --time exclude each other: the line to keep is known only at the end of the inputs", o.Keep)
	case o.Window == semel.Forever:
		p.addf("--time counts the window by the time in a line: add --window, such as 5m")
	case o.Store != "":
		p.addf("--time and --store exclude each other: a store forgets keys by the clock, not by a time in the lines: leave out --store and name all files of the time in question")
	}
}

func (o *Options) checkWhy(p *problems) {
	switch {
	case !o.Why:
	case o.Duplicates == "":
		p.addf("--why says why lines are duplicates: add --duplicates FILE")
	case o.Store != "":
		p.addf("--why and --store exclude each other: a store remembers keys, not where their lines stand: leave out --store")
	case o.Lossy != 0:
		p.addf("--why and --lossy exclude each other: a filter does not remember where the line of a key stands")
	case o.Keep == KeepNone:
		p.addf("--why and --keep none exclude each other: no line of a key that comes several times is kept")
	}
}

func (o *Options) checkLossy(p *problems) {
	switch {
	case o.Lossy == 0 && o.Expect != 0:
		p.addf("--expect is only for --lossy RATE; without it keys are exact")
	case o.Lossy != 0 && (o.Lossy < 0 || o.Lossy >= 1):
		p.addf("--lossy %v: write a rate above 0 and below 1, such as 0.001", o.Lossy)
	case o.Lossy != 0 && o.Expect <= 0:
		p.addf("--lossy needs --expect N, the number of different keys")
	}
	if o.Lossy != 0 && o.Store != "" {
		p.addf("--lossy and --store exclude each other: the keys of a store are exact")
	}
	if o.Lossy != 0 && o.Window != semel.Forever {
		p.addf("--lossy and --window exclude each other: the filter forgets no key")
	}
	if o.Lossy != 0 && o.OnMismatch != MismatchDrop {
		p.addf("--lossy cannot detect other content: leave out --on-mismatch")
	}
}

func (o *Options) checkMemory(p *problems) {
	switch {
	case o.Memory == 0:
	case o.Memory < LeastMemory:
		p.addf("--memory: write at least %dMiB", LeastMemory>>20)
	case o.Store != "":
		p.addf("--memory and --store exclude each other: the keys of a store are on disk: leave out one")
	case o.Lossy != 0:
		p.addf("--memory and --lossy exclude each other: the filter has a fixed size: leave out one")
	case o.Window != semel.Forever:
		p.addf("--memory and --window exclude each other: keys that are forgotten stay in memory: leave out --memory")
	case o.Keep != KeepFirst:
		p.addf("--memory and --keep %s exclude each other: the line to keep stays in memory until the end of the inputs: leave out --memory", o.Keep)
	case o.Why:
		p.addf("--memory and --why exclude each other: the places of all kept lines stay in memory: leave out --memory")
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
		p.addf("standard input is named %d times, but it can be read only once", stdin)
	}
}

// RefusedError says why Prepare refused a run. Nothing was touched.
type RefusedError struct {
	// Problems has one line for each problem: what is wrong, and what to do.
	Problems []string
}

// Error implements error.
func (e *RefusedError) Error() string { return "dedup: refused: " + strings.Join(e.Problems, "; ") }

// problems collects problems, so that all of them are reported together.
type problems []string

func (p *problems) addf(format string, args ...any) {
	*p = append(*p, fmt.Sprintf(format, args...))
}

// oneOf adds a problem unless the value of a flag is a known one.
func oneOf[T ~string](p *problems, flag string, value T, known ...T) {
	if slices.Contains(known, value) {
		return
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	p.addf("%s %q: write one of %s", flag, value, strings.Join(names, ", "))
}

// err returns nil if there are no problems.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return &RefusedError{Problems: p}
}
