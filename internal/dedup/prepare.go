package dedup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/semel-dev/semel/key"

	"github.com/semel-dev/semel/internal/framing"
)

// findInputs examines all inputs and settles their format. Problems go to p.
func findInputs(ctx context.Context, o *Options, rules []*key.Rule, p *problems) ([]*input, Format) {
	var inputs []*input
	for _, name := range o.Inputs {
		in, err := findInput(ctx, name, o.Stdin, o.Format)
		if err != nil {
			p.addf("%v", err)
			continue
		}
		inputs = append(inputs, in)
	}
	format := oneFormat(inputs, rules, p)
	for _, in := range inputs {
		in.format = format
	}
	return inputs, format
}

// oneFormat settles the format that all inputs have.
func oneFormat(inputs []*input, rules []*key.Rule, p *problems) Format {
	var first *input
	for _, in := range inputs {
		switch {
		case in.format == Auto:
		case first == nil:
			first = in
		case in.format == first.format:
		case isLine(rules) && !in.format.records() && !first.format.records():
			// The format makes no difference to the key, and in some formats
			// blank lines are lines.
			return Text
		default:
			p.addf("%s looks like %s and %s like %s: add --format", first.name, first.format, in.name, in.format)
			return first.format
		}
	}
	switch {
	case first != nil:
		return first.format
	case isLine(rules):
		return Text
	}
	// The key is in JSON documents. A line that is not one is reported.
	return JSONL
}

// documents reports whether the lines are JSON documents.
func (f Format) documents() bool { return f == JSONL || f == JSON }

// records reports whether the format has records and a header.
func (f Format) records() bool { return f == CSV || f == TSV }

// comma returns the separator of fields in a format, or 0.
func (o *Options) comma(f Format) byte {
	switch {
	case f == CSV && o.Delimiter != 0:
		return o.Delimiter
	case f == CSV:
		return ','
	case f == TSV:
		return '\t'
	}
	return 0
}

// parseRules reads the key rules.
func parseRules(texts []string, p *problems) []*key.Rule {
	var rules []*key.Rule
	for _, text := range texts {
		r, err := key.ParseRule(text)
		var wrong *key.RuleError
		var unstable *key.UnstableError
		switch {
		case wrongList(text) != "":
			p.addf("--key %q: for a composite key repeat --key: %s", text, wrongList(text))
		case errors.As(err, &wrong):
			p.addf("--key %q, column %d: %s", text, wrong.Column, wrong.Problem)
		case errors.As(err, &unstable):
			p.addf("--key %s is not stable: %s", text, unstable.Why)
		case err != nil:
			p.addf("--key %q: %v", text, err)
		case len(r.Paths()) == 0 && r.Form() != key.FormLine:
			p.addf("--key %s: lines of a file have no such property; use a path that begins with '.', line, hash(.), or lower(), trim(), nfc() or number() around a path", text)
		default:
			rules = append(rules, r)
		}
	}
	return rules
}

// wrongList returns the flags for a text that is several paths with commas between
// them, or "".
func wrongList(text string) string {
	paths := strings.Split(text, ",")
	for i, path := range paths {
		path = strings.TrimSpace(path)
		if _, err := key.ParsePath(path); err != nil || len(paths) < 2 {
			return ""
		}
		paths[i] = "--key " + shellWord(path)
	}
	return strings.Join(paths, " ")
}

// checkRules refuses rules that do not fit the format.
func checkRules(rules []*key.Rule, format Format, p *problems) {
	if format != Text || len(rules) == 0 || isLine(rules) {
		return // the problem of the rules was already reported
	}
	for _, r := range rules {
		if r.Form() != key.FormLine {
			p.addf("--key %s: lines of text have no members; add --format jsonl or --format csv if they are not text", r)
			return
		}
	}
	p.addf("--key line: write it only once")
}

// readHeaders reads the CSV headers of all inputs and checks that they are
// equal.
func readHeaders(ctx context.Context, inputs []*input, comma byte, p *problems) (names []string, header []byte) {
	var first *input
	for _, in := range inputs {
		if err := in.readHeader(ctx, comma); err != nil {
			p.addf("%s: %s", in.name, reason(err))
			continue
		}
		if len(in.header) == 0 {
			continue // an empty file has no header
		}
		fields, _ := framing.AppendFields(nil, nil, trimEnd(in.header), comma, allFields)
		own := make([]string, len(fields))
		for i, f := range fields {
			own[i] = string(f)
		}
		if first == nil {
			first, names = in, own
			continue
		}
		if strings.Join(own, "\x00") != strings.Join(names, "\x00") {
			p.addf("%s and %s have different headers (%q and %q); deduplicate them separately", in.name, first.name, own, names)
		}
	}
	if first != nil {
		header = append(bytes.Clone(first.mark), first.header...)
	}
	return names, header
}

// readHeader reads the first record and moves the start of the input after it.
func (in *input) readHeader(ctx context.Context, comma byte) error {
	s, err := in.stream(ctx, in.start)
	if err != nil {
		return err
	}
	if in.kept == nil {
		defer s.close()
	}
	scanner := framing.Rows{Comma: comma}
	for {
		more, err := s.plain.ReadBytes('\n')
		in.header = append(in.header, more...)
		in.lead = append(in.lead, more...)
		in.start = int64(len(in.lead))
		if end, _ := scanner.Next(in.header); end >= 0 {
			return in.checkHeader()
		}
		switch {
		case len(in.header) > MaxLine:
			return fmt.Errorf("the CSV header is longer than %d MiB: is a quote never closed?", MaxLine>>20)
		case err == nil:
		case len(more) == 0 && len(in.header) == 0:
			return nil
		default:
			in.header = append(in.header, '\n')
			return errors.Join(s.explainEnd(err), in.checkHeader())
		}
	}
}

// checkHeader refuses a first line that is no header.
func (in *input) checkHeader() error {
	line := trimEnd(in.header)
	switch flaw := framing.Flaw(line); flaw {
	case framing.ErrCR:
		return fmt.Errorf("%w, or some of them do: pass the input through tr '\\r' '\\n'", errOnlyCR)
	case framing.ErrMark:
		return fmt.Errorf("the header: %w", flaw)
	}
	if said, ok := bytes.CutPrefix(bytes.Trim(line, `"`), []byte("sep=")); ok && len(said) == 1 {
		return fmt.Errorf("line 1, %s, names the delimiter for spreadsheets: pass the input through tail -n +2 and add --delimiter %s", line, delimiterWord(said[0]))
	}
	return nil
}

// headerLines returns the number of lines before the first record.
func (in *input) headerLines() int64 { return int64(bytes.Count(in.header, []byte{'\n'})) }

// checkPaths refuses a file that has two roles in one run.
func checkPaths(inputs []*input, outputs []*output, report string, p *problems) {
	if report != "" {
		o := &output{flag: "--report", name: report}
		o.find(p)
		outputs = append(outputs[:len(outputs):len(outputs)], o)
	}
	for i, o := range outputs {
		if o.path == "" {
			continue
		}
		info, err := os.Stat(o.path)
		for _, in := range inputs {
			if in.info != nil && (in.path == o.path || err == nil && os.SameFile(info, in.info)) {
				p.addf("%s %s is also an input; write to another file", o.flag, o.name)
			}
		}
		for _, other := range outputs[:i] {
			otherInfo, otherErr := os.Stat(other.path)
			if other.path == "" {
				continue
			}
			if other.path == o.path || err == nil && otherErr == nil && os.SameFile(info, otherInfo) {
				p.addf("%s and %s are the same file, %s; name two files", other.flag, o.flag, o.name)
			}
		}
	}
}
