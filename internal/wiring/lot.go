package wiring

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// ExistingLot is OpenLot for who only looks: it makes no directory, and reports
// whether there is a lot that can be looked into. One in a topic cannot.
func ExistingLot(ctx context.Context, f *config.File, p *config.Pipeline) (pipeline.Lot, bool, error) {
	switch {
	case p.Parked.Topic != "":
		return nil, false, nil
	case p.Parked.Path != "":
		if _, err := os.Stat(p.Parked.Path); errors.Is(err, fs.ErrNotExist) {
			return nil, false, nil
		}
	}
	lot, err := OpenLot(ctx, f, p)
	return lot, err == nil, f.RedactError(err)
}
