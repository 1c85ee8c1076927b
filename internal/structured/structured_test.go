package structured

import "testing"

func TestStructuredStringsAreParsed(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"q-1"`: "q-1", `""`: "", `"a\"b\\c"`: `a"b\c`, `"a"; v="x,\"y"`: "a", `"a";v`: "a", `"a,b" `: "a,b",
	} {
		if got, err := String(value); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", value, got, err, want)
		}
		if again, err := String(Quote(want)); err != nil || again != want {
			t.Errorf("%q in quotes is %q, %v", want, again, err)
		}
	}
	for _, value := range []string{`"`, `"a`, `"\`, `"\n"`, `"a" b`, `"a", "b"`, "\"\x00\""} {
		if got, err := String(value); err == nil {
			t.Errorf("%s is %q", value, got)
		}
	}
}
