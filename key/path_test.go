package key

import (
	"errors"
	"strings"
	"testing"
)

func TestPathSplitsIntoObjectAndMember(t *testing.T) {
	t.Parallel()
	for _, test := range [][3]string{
		{".", ".", ""}, {".a", ".", "a"}, {".a.b", ".a", "b"}, {`.list[0]["odd.name"]`, ".list[0]", "odd.name"}, {".list[1]", ".list", ""},
	} {
		path, err := ParsePath(test[0])
		if err != nil {
			t.Fatal(err)
		}
		if parent, name := path.Split(); parent.String() != test[1] || name != test[2] {
			t.Errorf("%s: %s and %q, not %s and %q", test[0], parent, name, test[1], test[2])
		}
	}
}

func TestPathsParseAndPrintInOneNotation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		".":                     ".",
		".a":                    ".a",
		".a.b":                  ".a.b",
		".event-id":             ".event-id",
		".$ref.@type._0":        ".$ref.@type._0",
		".été":                  ".été",
		".items[0].id":          ".items[0].id",
		".[0][12]":              ".[0][12]",
		`.["odd.name"]`:         `.["odd.name"]`,
		`.a["b c"][1].d`:        `.a["b c"][1].d`,
		`.["plain"]`:            ".plain",
		`.a["plain"]`:           ".a.plain",
		`.[""]`:                 `.[""]`,
		`.["\u0061\u00e9\n\""]`: `.["aé\n\""]`,
		`.["]"]`:                `.["]"]`,
	} {
		p, err := ParsePath(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if p.String() != want {
			t.Errorf("%s prints as %s, want %s", text, p, want)
		}
	}
}

func TestInvalidPathErrorNamesTheColumn(t *testing.T) {
	t.Parallel()
	for text, column := range map[string]int{
		"":               1,
		"a":              1,
		"..a":            2,
		".a.":            4,
		".a..b":          4,
		".a b":           3,
		".a.[0]":         4,
		".a[":            4,
		".a[]":           4,
		".a[-1]":         4,
		".a[01]":         4,
		".a[9999999999]": 4,
		".a[0":           5,
		".a[0}":          5,
		`.a["b`:          6,
		`.a["\x"]`:       6,
		`.a["b"`:         7,
		`.a["\ud800"]`:   4,
		".a[\"\xff\"]":   4,
		".\xff":          2,
		".a,b":           3,
		".a[*]":          4,
		".a|.b":          3,
		".items[0]id":    10,
		".a" + strings.Repeat(".b", maxPathSteps): 2*maxPathSteps + 1,
	} {
		_, err := ParsePath(text)
		var wrong *RuleError
		if !errors.As(err, &wrong) {
			t.Errorf("%.30s: error %v, want a RuleError", text, err)
			continue
		}
		if wrong.Column != column || wrong.Text != text {
			t.Errorf("%.30s: column %d, want %d: %v", text, wrong.Column, column, err)
		}
	}
}

func TestOnlyASingleMemberPathNamesAColumn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{".a": "a", `.["a b"]`: "a b", `.[""]`: "", ".": "-", ".a.b": "-", ".[0]": "-"} {
		name, ok := mustPath(t, text).Name()
		if ok != (want != "-") || ok && name != want {
			t.Errorf("%s names %q, %v", text, name, ok)
		}
	}
}
