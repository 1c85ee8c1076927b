package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/semel-dev/semel/doctor"
)

// Examination collects the findings about one store, one pipeline, the proxy, or the section
// "serve".
type Examination struct {
	File *File
	// Exactly one of Store, Pipeline, Proxy and Serve is set: the one that is examined.
	Store    *Store
	Pipeline *Pipeline
	Proxy    *Proxy
	Serve    *Serve
	Findings []doctor.Finding
	// Err says why something could not be checked completely. Its secrets are
	// hidden.
	Err error
}

// ProxyName and ServeName are the names of the proxy and of the section "serve" among stores
// and pipelines.
const (
	ProxyName = "proxy"
	ServeName = "serve"
)

// Name returns the name of the store or pipeline, ProxyName or ServeName.
func (x *Examination) Name() string {
	switch {
	case x.Pipeline != nil:
		return x.Pipeline.Name
	case x.Proxy != nil:
		return ProxyName
	case x.Serve != nil:
		return ServeName
	}
	return x.Store.Name
}

// Kind returns the kind of the store, "pipeline", or "service" for the others.
func (x *Examination) Kind() string {
	switch {
	case x.Pipeline != nil:
		return "pipeline"
	case x.Proxy != nil, x.Serve != nil:
		return "service"
	}
	return x.Store.Spec.Kind()
}

// Breaks reports whether a finding is Broken.
func (x *Examination) Breaks() bool {
	return slices.ContainsFunc(x.Findings, func(f doctor.Finding) bool { return f.Severity == doctor.Broken })
}

// Note adds a finding.
func (x *Examination) Note(severity doctor.Severity, subject, found, cost, remedy string) {
	x.Findings = append(x.Findings, doctor.Finding{Severity: severity, Subject: subject, Found: found, Cost: cost, Remedy: remedy})
}

// Add adds a server's findings, with secrets hidden.
func (x *Examination) Add(findings []doctor.Finding) {
	for i := range findings {
		findings[i].Found = x.File.Redact(findings[i].Found)
	}
	x.Findings = append(x.Findings, findings...)
}

// Fail records why something could not be checked.
func (x *Examination) Fail(what string, err error) {
	if err == nil {
		return
	}
	if x.Pipeline != nil {
		err = x.File.Advise(x.Pipeline, Part(what), err)
	}
	if what != "" {
		err = fmt.Errorf("%s: %w", what, err)
	}
	x.Err = errors.Join(x.Err, x.File.RedactError(err))
}

// Refused adds a finding for an error that does not go away by itself. The store
// was checked and cannot work with its present setup.
func (x *Examination) Refused(err error, remedy string) {
	x.Note(doctor.Broken, "open", x.File.Redact(err.Error()), "nothing is processed", remedy)
}

// IsFile adds a finding if path exists and is not a regular file.
func (x *Examination) IsFile(subject, path, cost string) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode().IsRegular() {
		return true
	}
	x.Note(doctor.Broken, subject, path+" is not a regular file", cost, "use another path")
	return false
}

// Directory checks whether files can be created in a directory, or where the
// directory will be created. It removes its test files before it returns.
func (x *Examination) Directory(subject, dir, cost string) {
	at := dir
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			x.Note(doctor.Broken, subject, at+" is not a directory", cost, "use another path")
			return
		}
		if parent := filepath.Dir(at); err != nil && errors.Is(err, os.ErrNotExist) && parent != at {
			at = parent
			continue
		}
		break
	}
	file, err := os.CreateTemp(at, ".semel-doctor-*")
	if err == nil {
		err = errors.Join(file.Close(), os.Remove(file.Name()))
	}
	if err != nil {
		x.Note(doctor.Broken, subject, err.Error(), cost, "give the program write access, or use another path")
		return
	}
	x.Note(doctor.Fine, subject, dir+" can be written", "", "")
	x.Space(subject, at)
}

// Space adds a finding if the disk with a directory is nearly full: if less than 1 GiB
// and a tenth of it is left.
func (x *Examination) Space(subject, dir string) {
	free, size, ok := space(dir)
	if !ok || free >= min(1<<30, size/10) {
		return
	}
	x.Note(doctor.Warning, subject, fmt.Sprintf("%s has %d of %d MiB left", dir, free>>20, size>>20),
		"when the disk is full, the pipeline pauses until a person frees space", "free space on that disk, or use another one")
}

// Soon is how long before their end certificates and credentials are reported.
const Soon = 14 * 24 * time.Hour

// Certificate reports a certificate that has ended, or ends soon.
func (x *Examination) Certificate(subject string, c *x509.Certificate, cost string) {
	left := time.Until(c.NotAfter)
	found := "its certificate ends on " + c.NotAfter.UTC().Format(time.DateOnly)
	switch {
	case left <= 0:
		x.Note(doctor.Broken, subject, found, cost, "renew the certificate")
	case left < Soon:
		x.Note(doctor.Warning, subject, found, "from then on "+cost, "renew the certificate")
	default:
		x.Note(doctor.Fine, subject, found, "", "")
	}
}
