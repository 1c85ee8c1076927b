package dedup

import (
	"errors"
	"os"
	"testing"
)

func TestRefusedRunTouchesNothingWhereTheStoreIsToBe(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(b *bundle) (store, out string){
		"foreign output, empty directory": func(b *bundle) (string, string) {
			return b.path("store"), b.file("out", "theirs")
		},
		"foreign files": func(b *bundle) (string, string) {
			b.file("store/theirs", "x")
			return b.path("store"), b.path("out")
		},
		"file": func(b *bundle) (string, string) {
			return b.file("file", "x"), b.path("out")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if err := os.Mkdir(b.path("store"), 0o755); err != nil {
				t.Fatal(err)
			}
			opts := Options{Inputs: []string{b.file("in", "a\n")}}
			opts.Store, opts.Output = make(b)
			before := b.content("store/theirs")
			_, _, err := b.run(t.Context(), opts)
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("error %v", err)
			}
			names, err := os.ReadDir(b.path("store"))
			if err != nil || len(names) > 1 || len(names) == 1 && names[0].Name() != "theirs" || b.content("store/theirs") != before {
				t.Errorf("the directory holds %v, %v", names, err)
			}
		})
	}
}
