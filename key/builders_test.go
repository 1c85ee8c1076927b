package key

import (
	"errors"
	"testing"

	"github.com/semel-dev/semel"
)

func TestBuildersMakeTheIDsThatRulesFind(t *testing.T) {
	t.Parallel()
	m := message(`{"entity":"order-1","event":"placed","version":3,"tx":"t-9"}`)
	for _, tt := range []struct {
		built string
		paths []string
	}{
		{StateChange("order-1", "placed", 3), []string{".entity", ".event", ".version"}},
		{Action("placed", "t-9"), []string{".event", ".tx"}},
		{Composite("t-9"), []string{".tx"}},
	} {
		var rules []*Rule
		for _, p := range tt.paths {
			rules = append(rules, mustRule(t, p))
		}
		all, err := All(rules...)
		if err != nil {
			t.Fatal(err)
		}
		if k, err := all.Key("", m); err != nil || k.ID != tt.built {
			t.Errorf("%v finds %q, %v; built %q", tt.paths, k.ID, err, tt.built)
		}
	}
}

func TestIDBuildersReturnAnInvalidIDForEmptyParts(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		StateChange("", "placed", 1), StateChange("order", "", 1), Action("", "x"), Action("x", ""),
		Composite(), Composite(""), Composite("a", ""),
	} {
		if err := (semel.Key{ID: id}).Validate(); !errors.Is(err, semel.ErrInvalidKey) {
			t.Errorf("%q is an id", id)
		}
	}
}

func TestBuiltIDsNeverCollideByConcatenation(t *testing.T) {
	t.Parallel()
	ids := []string{
		Action("ab", "c"), Action("a", "bc"), Composite("a", "b", "c"), Composite(Composite("a", "b"), "c"),
		Composite("a", Composite("b", "c")), Action("\x00c", "a"), StateChange("a", "b", 1), StateChange("a", "b", 11),
		Composite("a", "b", "1"), string(AppendString(nil, Composite("a", "b"))), Composite("a", "b"),
		string(AppendLine(nil, []byte("a"))), string(AppendLine(nil, nil)), string(AppendBytes(nil, []byte("a"))),
		string(appendBool(nil, true)), string(appendBool(nil, false)), "true", "t",
	}
	seen := map[string]int{}
	for i, id := range ids {
		if other, ok := seen[id]; ok {
			t.Errorf("ids %d and %d are both %q", other, i, id)
		}
		seen[id] = i
	}
}
