package suite

import (
	"testing"

	"github.com/semel-dev/semel/bench/internal/records"
)

func TestRowCheckerRefusesATableThatIsNotTheAnswer(t *testing.T) {
	t.Parallel()
	in := records.Input{Seed: 1, Records: 20}
	id := func(i int) string {
		key, _ := in.Append(nil, nil, i)
		return string(key)
	}
	for _, distinct := range []bool{true, false} {
		newChecker := func() *rowChecker {
			return &rowChecker{in: in, distinct: distinct, seen: make([]bool, in.Records)}
		}
		whole := newChecker()
		for i := range in.Records {
			if distinct && !in.Fresh(i) {
				continue
			}
			if whole.end() == nil {
				t.Errorf("distinct %t: rows are missing from %d on, and checkRows found no error", distinct, i)
			}
			if err := whole.row(i, id(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := whole.end(); err != nil {
			t.Error(err)
		}
		if whole.row(0, id(0)) == nil {
			t.Errorf("distinct %t: a row that is there twice was not noticed", distinct)
		}
		if newChecker().row(0, id(1)) == nil || newChecker().row(20, id(1)) == nil {
			t.Errorf("distinct %t: a row that is not of the input was not noticed", distinct)
		}
		if err := newChecker().row(9, id(9)); (err != nil) != distinct {
			t.Errorf("distinct %t: a duplicate: %v", distinct, err)
		}
	}
}
