package schema

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// MaxSecretBytes is the maximum size of a file that ${file:…} reads.
const MaxSecretBytes = 64 << 10

// resolved is a text with its references replaced.
type resolved struct {
	text string
	// parts are the places of the values of its references, in order.
	parts []span
}

// span is a part of a text.
type span struct{ from, to int }

// resolve replaces ${env:NAME}, ${env:NAME:-default} and ${file:PATH} in a text
// of the configuration. $${ means a literal ${. Replaced values are not scanned
// again.
func (v Value) resolve(written string) (resolved, bool) {
	var (
		out  strings.Builder
		done resolved
		fine = true
	)
	for rest := written; ; {
		i := strings.Index(rest, "${")
		if i < 0 {
			out.WriteString(rest)
			done.text = out.String()
			return done, fine
		}
		if i > 0 && rest[i-1] == '$' {
			out.WriteString(rest[:i-1] + "${")
			rest = rest[i+2:]
			continue
		}
		out.WriteString(rest[:i])
		reference, after, closed := strings.Cut(rest[i+2:], "}")
		if !closed {
			v.Wrong("a reference ${… has no }: write $${ for the text itself")
			return done, false
		}
		part, secret, err := v.lookUp(reference)
		if err != nil {
			missing, ok := errors.AsType[notHere](err)
			switch {
			case !ok:
				v.Wrong("%v", err)
				fine = false
			case v.Placeholders:
				v.missing(missing)
				part, secret = "${"+reference+"}", false
			default:
				v.missing(missing)
				fine = false
			}
		}
		if secret {
			v.Hidden.hide(part)
		}
		if part != "" {
			done.parts = append(done.parts, span{out.Len(), out.Len() + len(part)})
		}
		out.WriteString(part)
		rest = after
	}
}

// notHere means that a reference is valid, but this machine lacks its value.
type notHere struct{ error }

// unresolved is a reference in a field that this machine cannot resolve.
type unresolved struct {
	path    string
	problem Problem
}

// missing records a reference that cannot be resolved here.
func (v Value) missing(err error) {
	at := v.at
	at.File = v.Name
	v.unresolved = append(v.unresolved, unresolved{v.Path, Problem{at, fmt.Sprintf("%s: %v", v.Path, err)}})
}

// Lacking returns the problems of fields that this machine cannot resolve, by path.
func (d *Document) Lacking() map[string]Problem {
	list := map[string]Problem{}
	for _, u := range d.unresolved {
		list[u.path] = u.problem
	}
	return list
}

// ErrOfRest is Err for a document with placeholders. Problems of a field with a
// placeholder are left out, because the value may be fine.
func (d *Document) ErrOfRest() error {
	var list []Problem
	for _, p := range d.Problems {
		if !d.Lacks(pathOf(p)) {
			list = append(list, p)
		}
	}
	return errorOf(list)
}

// Lacks reports whether this machine cannot resolve the value of a field, or one of
// the values in its list.
func (d *Document) Lacks(path string) bool {
	list, _, _ := strings.Cut(path, "[")
	return slices.ContainsFunc(d.unresolved, func(u unresolved) bool {
		of, _, _ := strings.Cut(u.path, "[")
		return of == list
	})
}

// hasPlaceholder reports whether the value has a placeholder.
func (v Value) hasPlaceholder() bool { return v.Placeholders && v.Lacks(v.Path) }

// pathOf returns the path at the start of a problem.
func pathOf(p Problem) string {
	path := strings.TrimPrefix(p.Text, "unknown field ") // otherwise the text starts with its path
	path, _, _ = strings.Cut(path, ":")
	path, _, _ = strings.Cut(path, " ")
	return path
}

// ErrWithout is Err for callers that need only some parts of a file. part returns
// the part that a path belongs to, and whether that part may lack values. Values
// that such a part lacks on this machine are not problems. Other problems in it
// are ignored too, because the missing value may have caused them.
func (d *Document) ErrWithout(part func(path string) (name string, mayLack bool)) error {
	var list []Problem
	incomplete := map[string]bool{}
	for _, u := range d.unresolved {
		if name, mayLack := part(u.path); mayLack {
			incomplete[name] = true
		} else {
			list = append(list, u.problem)
		}
	}
	for _, p := range d.Problems {
		if name, _ := part(pathOf(p)); !incomplete[name] {
			list = append(list, p)
		}
	}
	return errorOf(list)
}

// lookUp returns the value of a reference. secret reports whether it is a secret
// wherever it is used: the content of a separate file is.
func (v Value) lookUp(reference string) (part string, secret bool, err error) {
	kind, name, ok := strings.Cut(reference, ":")
	switch {
	case ok && kind == "env":
		name, fallback, hasFallback := strings.Cut(name, ":-")
		if !IsVariable(name) {
			return "", false, errors.New("${env:…} does not name an environment variable: write it like ${env:NAME}")
		}
		if set := v.env(name); set != "" {
			return set, false, nil
		}
		if !hasFallback {
			return "", false, notHere{fmt.Errorf("the environment variable %s is not set, or empty: set it, name a file that has it with --env-file FILE, or write ${env:%s:-default}", name, name)}
		}
		return fallback, false, nil
	case ok && kind == "file":
		if name == "" {
			return "", false, errors.New("${file:} names no file: write ${file:/path}")
		}
		part, err := v.readSecret(name)
		if err != nil {
			err = notHere{err}
		}
		return part, true, err
	case IsVariable(reference):
		return "", false, fmt.Errorf("${%s} is not a reference: write ${env:%s} for the environment variable, or $${ for the text itself", reference, reference)
	}
	return "", false, errors.New("${…} is not a known reference: write ${env:NAME} or ${file:/path}, or $${ for the text itself")
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// IsVariable reports whether a name can be that of a variable, of the environment or in an
// expression.
func IsVariable(name string) bool { return variable.MatchString(name) }

// readSecret returns the content of a file without the line end that editors add.
func (v Value) readSecret(name string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(v.Dir, name)
	}
	file, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("${file:%s} cannot be read: %w", name, Cause(err))
	}
	if info, err := file.Stat(); err == nil && othersRead(info) {
		v.exposes(name, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxSecretBytes+1))
	_ = file.Close() // the file was only read, so nothing can be lost
	switch {
	case err != nil:
		return "", fmt.Errorf("${file:%s} cannot be read: %w", name, Cause(err))
	case len(data) > MaxSecretBytes:
		return "", fmt.Errorf("${file:%s} is larger than 64 KiB, the limit for a secret", name)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" {
		return "", fmt.Errorf("${file:%s} is empty", name)
	}
	return text, nil
}

// Cause strips the operation and the file name from an error; the message has
// them.
func Cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}
