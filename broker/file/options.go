package file

import (
	"cmp"
	"path/filepath"
	"time"

	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/vfs"
)

// defaultMaxLine is the default of SourceOptions.MaxLine.
const defaultMaxLine = 64 << 20

// SourceOptions are the options of OpenSource. The zero value is valid.
type SourceOptions struct {
	// State is the file that holds the read positions. Its directory is created.
	// Defaults to "": the positions are lost when the source is closed, unless a
	// Session keeps them.
	State string
	// Follow waits for new lines and files. Defaults to false: the source ends
	// at the end of the files.
	Follow bool
	// FromEnd skips the lines that are in the files when they are followed for
	// the first time. Defaults to false. It needs Follow.
	FromEnd bool
	// Poll is how often Follow looks for new files and lines, and so the longest
	// delay of a new line. Defaults to 250 ms. Must be at least 1 ms.
	Poll time.Duration
	// MaxLine is the longest line, row or document in bytes. A longer one ends the source with
	// an error. Defaults to 64 MiB. Must not be negative.
	MaxLine int
	// Format says how the files are divided into messages. Defaults to Lines.
	Format Format
	// Delimiter separates the columns of CSV and TSV. It must be an ASCII character other than
	// a quote and a line end. Defaults to 0, which is that of the Format.
	Delimiter byte
	// KeepBlank delivers lines that are empty or white space. Defaults to
	// false: they are skipped.
	KeepBlank bool
	// SaveEvery is the time between two writes of State. Defaults to 1 s. Must
	// not be negative.
	SaveEvery time.Duration
	// FS is the file layer of State, for tests. Defaults to vfs.OS.
	FS vfs.FS

	chunk int
}

// lingers is how long a renamed or removed file is read on while no data is added, because
// its writer may still have it open.
const lingers = 30 * time.Second

func (o *SourceOptions) defaults() {
	o.Poll = cmp.Or(o.Poll, 250*time.Millisecond)
	o.MaxLine = cmp.Or(o.MaxLine, defaultMaxLine)
	o.Format = cmp.Or(o.Format, Lines)
	o.SaveEvery = cmp.Or(o.SaveEvery, time.Second)
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	o.chunk = cmp.Or(o.chunk, 256<<10)
}

func (o *SourceOptions) validate(paths []string) error {
	wrong := invalid.In("file: ")
	if len(paths) == 0 {
		wrong.Add("no path is given")
	}
	for _, path := range paths {
		if _, err := filepath.Match(path, ""); path == "" || err != nil {
			wrong.Add("the path %q is not a pattern", path)
		}
	}
	if o.Poll < time.Millisecond {
		wrong.Add("SourceOptions.Poll: %v is below 1ms", o.Poll)
	}
	if o.MaxLine < 0 {
		wrong.Add("SourceOptions.MaxLine: %d is negative", o.MaxLine)
	}
	if o.SaveEvery < 0 {
		wrong.Add("SourceOptions.SaveEvery: %v is negative", o.SaveEvery)
	}
	switch o.Format {
	case Lines, CSV, TSV, JSON:
	default:
		wrong.Add("SourceOptions.Format: %q is none of lines, csv, tsv and json", o.Format)
	}
	if o.Delimiter != 0 && (o.Delimiter >= 0x80 || o.Delimiter == '"' || o.Delimiter == '\n' || o.Delimiter == '\r') {
		wrong.Add("SourceOptions.Delimiter: %q cannot separate columns", o.Delimiter)
	}
	if o.Delimiter != 0 && o.comma() == 0 {
		wrong.Add("SourceOptions.Delimiter: it needs the Format CSV or TSV")
	}
	if o.FromEnd && o.Format != Lines {
		wrong.Add("SourceOptions.FromEnd: it needs the Format Lines: a record may span lines, so that its start cannot be found from the end")
	}
	if o.FromEnd && !o.Follow {
		wrong.Add("SourceOptions.FromEnd: it needs Follow")
	}
	return wrong.Err()
}

// Format says how a file is divided into messages.
type Format string

const (
	// Lines are messages, as they are.
	Lines Format = "lines"
	// CSV has a header. Each row is a message: a JSON object with its columns, whose values are
	// strings. A row may span lines.
	CSV Format = "csv"
	// TSV is CSV with tabs instead of commas.
	TSV Format = "tsv"
	// JSON has documents one after the other, which may span lines, and arrays, whose elements
	// are messages.
	JSON Format = "json"
)

// comma separates columns. It is 0 unless the format has rows.
func (o *SourceOptions) comma() byte {
	switch {
	case o.Format != CSV && o.Format != TSV:
		return 0
	case o.Delimiter != 0:
		return o.Delimiter
	case o.Format == TSV:
		return '\t'
	}
	return ','
}
