package app

import (
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
)

// Examine checks one store of a configuration: whether it can be reached, and
// whether it is set up to keep its promise. The stores that it is built on are
// examined separately. It blocks until the store's server has answered, at most
// the patience.
func Examine(ctx context.Context, f *config.File, s *config.Store, patience time.Duration) *config.Examination {
	x := &config.Examination{File: f, Store: s}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.Spec.Examine(patient, x)
	if semel.Classify(x.Err) == semel.ClassPermanent {
		x.Refused(x.Err, "fix the stated problem; until then the store cannot be opened")
		x.Err = nil
	}
	if above, ok := f.LayerOf(s.Name); ok {
		relieve(x, above.Name)
	}
	return x
}

// relieve lowers the severity of findings about a layer, because a lower store
// decides.
func relieve(x *config.Examination, stack string) {
	for i := range x.Findings {
		finding := &x.Findings[i]
		if finding.Severity > doctor.Notice {
			finding.Severity = doctor.Notice
			finding.Cost = "as a layer of " + stack + " it costs speed, not the promise. Alone: " + finding.Cost
		}
	}
}

// ExaminePipeline checks both ends of a pipeline. The source must have something
// to read. The sink must be reachable and accept what is written to it. It must
// be possible to park messages. Nothing is read from the source or written to the
// sink. It blocks until the servers have answered, for source, sink and parked
// messages at most the patience each.
func ExaminePipeline(ctx context.Context, f *config.File, p *config.Pipeline, patience time.Duration) *config.Examination {
	x := &config.Examination{File: f, Pipeline: p}
	for _, check := range []func(context.Context, *config.Examination){p.Source.Examine, p.Sink.Examine, examineParked} {
		patient, cancel := context.WithTimeout(ctx, patience)
		check(patient, x)
		cancel()
	}
	return x
}

// examineParked checks the place of parked messages.
func examineParked(ctx context.Context, x *config.Examination) {
	switch at := x.Pipeline.Parked; {
	case at.Path != "":
		x.Directory("parked.path", at.Path, "a message that fails permanently blocks the pipeline")
	case at.Store.Name != "":
		x.Fail("parked", parkedTable(ctx, x))
	}
}

// parkedTable checks the table of parked messages.
func parkedTable(ctx context.Context, x *config.Examination) error {
	letters, err := OpenDeadLetters(ctx, x.File, x.Pipeline)
	if semel.Classify(err) == semel.ClassPermanent {
		found, remedy := x.File.Redact(err.Error()), "fix the stated problem"
		if said, ok := errors.AsType[*diagnose.Error](x.File.Advise(x.Pipeline, config.ParkedPart, err)); ok {
			found, remedy = said.Cause, said.Remedy
		}
		x.Note(doctor.Broken, "parked.store", found, "a message that fails permanently blocks the pipeline", remedy)
		return nil
	}
	if err != nil {
		return err
	}
	of, ok := letters.(interface {
		Examine(ctx context.Context) ([]doctor.Finding, error)
	})
	if !ok {
		x.Note(doctor.Fine, "parked.store", "it can be opened", "", "")
		return letters.Close()
	}
	findings, err := of.Examine(ctx)
	x.Add(findings)
	return errors.Join(err, letters.Close())
}
