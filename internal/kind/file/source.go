// Package file is the kind of source that reads file lines, and the kind of sink
// that appends lines to a file.
package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Source reads file lines.
type Source struct {
	config.SourceBase
	// Paths are file names, with *, ? and […] as in a shell.
	Paths []string
	// Follow keeps reading lines that are appended.
	Follow bool
	// From is beginning or end: where reading a new file starts.
	From string
	// Format is lines, csv, tsv or json.
	Format string
	// Delimiter separates the columns of csv and tsv. It may be empty.
	Delimiter string
	// State is the directory that holds the positions.
	State string
}

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "file" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{Doc: "Lines of files, of at most 64MiB each. A blank line is a message if the key rule is made of `line`, and is skipped otherwise.", Fields: []schema.Field{
		schema.ListField("paths", schema.Form{Scalar: schema.ScalarPath}, func(v schema.Value) {
			v.List(func(element schema.Value) {
				var path string
				element.FilePath(&path)
				if _, err := filepath.Match(path, "x"); err != nil {
					element.Wrong("not a pattern: a [ has no ]")
				} else if path != "" {
					s.Paths = append(s.Paths, path)
				}
			})
		}, "File names, with `*`, `?` and `[…]` as in a shell.").Need(),
		schema.TruthField("follow", &s.Follow, "Keep reading lines that are appended, also after rotation. Without it, the pipeline ends at the end of the files.").Or("false"),
		schema.ChoiceField("from", &s.From, "Where reading a new file starts.", "beginning", "end").Or("beginning"),
		schema.ChoiceField("format", &s.Format, "How a file is divided into messages. `lines`: each line. `csv` and `tsv`: each row, as a JSON object of its columns, which the header names; values are strings. `json`: JSON documents, which may span lines; of an array each element.", "lines", "csv", "tsv", "json").Or("lines"),
		schema.Field{Name: "delimiter", Doc: "What separates the columns of `csv` or `tsv`: one character, such as `;`.", Form: schema.Form{Scalar: schema.ScalarText}, Shown: "a comma, or a tab", Read: func(v schema.Value) {
			v.Text(&s.Delimiter)
			if d := s.Delimiter; d != "" && (len(d) != 1 || d[0] >= 0x80 || strings.Contains("\"\r\n", d)) {
				v.Wrong("write one ASCII character, such as \";\"")
			}
		}},
		schema.PathField("state", &s.State, "Directory of the pipeline's read positions.").Or("semel-state"),
	}, Check: func(_ schema.Value, there schema.Members) {
		rows := s.Format == "csv" || s.Format == "tsv"
		if delimiter, ok := there["delimiter"]; ok && !rows {
			delimiter.Wrong("it needs format: csv, or tsv")
		}
		if from, ok := there["from"]; ok && s.From == "end" && s.Format != "lines" {
			from.Wrong("with format: %s a record may span lines, so that its start cannot be found from the end: leave it out", s.Format)
		}
	}}
}

// About implements config.Source.
func (s *Source) About(*config.Pipeline) config.SourceAbout {
	about := config.SourceAbout{
		Name: "file " + strings.Join(s.Paths, ", "), Lines: true,
		Again:    "the line is read again from the last position that was kept",
		AfterAck: config.ReadAgain(), Behind: "no position behind it is kept",
		Never: func(r *key.Rule) string {
			switch r.Form() {
			case key.FormHeader:
				return "a line of a file has no headers"
			case key.FormRecordKey:
				return "a line of a file has no record key"
			}
			return "a line of a file has no message id"
		},
	}
	if s.Follow {
		about.Exceptions = []string{"lines of a file that is truncated or deleted before it is read"}
	}
	return about
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	if l.Pipeline.Window < time.Hour {
		l.Notice(l.At("window"), schema.Duration(l.Pipeline.Window), "the window counts by the clock of the run, not by a time in the lines: all lines of an old file are within it", "nothing if that is meant")
	}
	if s.From == "end" {
		l.Add(doctor.Warning, config.Loss, l.At("source.file.from"), "end", "the lines that a new file already has are never read", "write from: beginning")
	}
	for _, path := range s.Paths {
		if format := ofLines(path); s.Format == "lines" && format != "" && readsJSON(l.Pipeline) {
			l.Add(doctor.Warning, config.NoRisk, l.At("source.file.paths"), path+" looks like "+format, "a line must be a JSON document: every other line is parked as invalid JSON", remedyOf(format))
		}
	}
	if sink, ok := l.Pipeline.Sink.(*Sink); ok && slices.ContainsFunc(s.Paths, func(glob string) bool {
		matched, err := filepath.Match(filepath.Clean(glob), filepath.Clean(sink.Path))
		return matched && err == nil
	}) {
		l.Add(doctor.Broken, config.NoRisk, l.At("sink.file.path"), sink.Path+" is one of the source's files", "the pipeline reads what it writes", "use a path that no pattern of the source matches")
	}
}

// Open implements config.Source.
func (s *Source) Open(_ context.Context, env *config.Env) (pipeline.Source, error) {
	return config.AsSource(s.open(env.Pipeline, filepath.Join(s.State, env.Pipeline.Name+".positions")))
}

// open opens the files. If state is "", the positions belong to a session.
func (s *Source) open(p *config.Pipeline, state string) (*file.Source, error) {
	opts := s.options(p)
	opts.State, opts.Follow, opts.FromEnd = state, s.Follow, s.From == "end"
	return file.OpenSource(s.Paths, opts)
}

// options are those of every reading of the files.
func (s *Source) options(p *config.Pipeline) *file.SourceOptions {
	o := &file.SourceOptions{Format: file.Format(s.Format), KeepBlank: p.Key.OfBody()}
	if s.Delimiter != "" {
		o.Delimiter = s.Delimiter[0]
	}
	return o
}

// Sample implements config.Source.
func (s *Source) Sample(ctx context.Context, p *config.Pipeline, fn func(*semel.Message) bool) (err error) {
	source, err := file.OpenSource(s.Paths, s.options(p))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close(context.WithoutCancel(ctx))) }()
	for {
		items, err := source.Read(ctx)
		for _, it := range items {
			if !fn(&it.Message) {
				return nil
			}
		}
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

// Examine implements config.Kind.
func (s *Source) Examine(ctx context.Context, x *config.Examination) {
	s.filesToRead(x)
	s.firstRecord(ctx, x)
	x.Directory("source.file.state", s.State, "positions cannot be kept")
}

// firstRecord reads a header and the beginning of a file of rows or documents.
func (s *Source) firstRecord(ctx context.Context, x *config.Examination) {
	if s.Format == "lines" {
		return
	}
	err := s.Sample(ctx, x.Pipeline, func(*semel.Message) bool { return false })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		x.Note(doctor.Broken, "source.file.format", strings.TrimPrefix(err.Error(), "file: "), "the pipeline ends when it reads that", "correct the file, or write another format")
	}
}

// filesToRead checks for readable files.
func (s *Source) filesToRead(x *config.Examination) {
	for _, pattern := range s.Paths {
		names, _ := filepath.Glob(pattern) // the pattern was checked before
		names = slices.DeleteFunc(names, func(name string) bool {
			info, err := os.Stat(name)
			return err == nil && !info.Mode().IsRegular() && name != pattern // the source skips it
		})
		unread := 0
		for _, name := range names {
			if !x.IsFile("source.file.paths", name, "the pipeline does not start") {
				unread++
				continue
			}
			file, err := os.Open(name)
			if err != nil {
				unread++
				x.Note(doctor.Broken, "source.file.paths", err.Error(), "its lines are not read", "give the program read access")
				continue
			}
			_ = file.Close() // nothing was read or written
		}
		switch {
		case len(names) == 0 && s.Follow:
			x.Note(doctor.Notice, "source.file.paths", pattern+" matches no file yet", "", "nothing if a file will appear")
		case len(names) == 0:
			x.Note(doctor.Broken, "source.file.paths", pattern+" matches no file", "the pipeline does not start", "correct the path, or write follow: true")
		case unread == 0:
			x.Note(doctor.Fine, "source.file.paths", fmt.Sprintf("%s: %d to read", pattern, len(names)), "", "")
		}
	}
}

// ofLines returns the format of a file by its name, if its lines are not JSON documents. It
// returns "" if they may be.
func ofLines(path string) string {
	name := strings.ToLower(filepath.Base(path))
	for _, packed := range []string{".gz", ".zst", ".zstd"} {
		name = strings.TrimSuffix(name, packed)
	}
	switch filepath.Ext(name) {
	case ".csv":
		return "CSV"
	case ".tsv", ".tab":
		return "TSV, which is CSV with tabs"
	case ".xml", ".yaml", ".yml":
		return strings.ToUpper(filepath.Ext(name)[1:])
	case ".xls", ".xlsx", ".parquet", ".avro", ".orc", ".zip", ".tar", ".tgz", ".bz2", ".xz", ".7z":
		return "a " + filepath.Ext(name) + " file"
	}
	return ""
}

func remedyOf(format string) string {
	switch {
	case strings.HasPrefix(format, "TSV"):
		return "write format: tsv, or key: { id: line }"
	case format == "CSV":
		return "write format: csv, or key: { id: line }"
	}
	return "write its records as JSON documents first, one on each line"
}

// readsJSON reports whether a pipeline looks into the bodies of its messages.
func readsJSON(p *config.Pipeline) bool {
	return p.Filter != "" || p.Map != "" || ofJSON(p.Key.Rule)
}

// ofJSON reports whether a rule finds nothing in a body that is not JSON.
func ofJSON(r *key.Rule) bool {
	switch r.Form() {
	case key.FormPath, key.FormHash:
		return true
	case key.FormFirst:
		return !slices.ContainsFunc(r.Rules(), func(part *key.Rule) bool { return !ofJSON(part) })
	}
	return slices.ContainsFunc(r.Rules(), ofJSON)
}
