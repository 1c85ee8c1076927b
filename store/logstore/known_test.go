package logstore

import (
	"os"
	"path/filepath"
	"testing"
)

// setKnown makes a key done, and sets values of a transaction.
func setKnown(t *testing.T, s *Store, n int, values map[string]string) {
	t.Helper()
	tx := begin(t, s)
	txClaim(t, tx, n, 0)
	for name, text := range values {
		tx.Set(name, []byte(text))
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func openDir(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// peeked returns the values that Peek knows, or nil.
func peeked(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	values, err := Peek(dir)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func TestPeekKnowsTheValuesOfAStoreThatWasClosed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if peeked(t, dir) != nil {
		t.Error("there is no store")
	}
	s := openDir(t, dir)
	setKnown(t, s, 1, map[string]string{"plain": "x"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if peeked(t, dir) != nil {
		t.Error("a store without values about keys has a copy of them")
	}
	s = openDir(t, dir)
	setKnown(t, s, 2, map[string]string{KnownPrefix + "a": "1", "empty": ""})
	if peeked(t, dir) != nil {
		t.Error("the store is open")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time after an open that changed nothing
		values := peeked(t, dir)
		if len(values) != 3 || string(values["plain"]) != "x" || string(values[KnownPrefix+"a"]) != "1" || values["empty"] == nil {
			t.Fatalf("values %q", values)
		}
		if err := openDir(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
	}
	s = openDir(t, dir)
	setKnown(t, s, 3, map[string]string{KnownPrefix + "a": "2"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if values := peeked(t, dir); string(values[KnownPrefix+"a"]) != "2" {
		t.Fatalf("values %q", values)
	}
}

// TestPeekDistrustsACopyOfOtherValues: a copy that is not of the end of the log must not
// say that keys are known.
func TestPeekDistrustsACopyOfOtherValues(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, dir string){
		"a store that was not closed": func(t *testing.T, dir string) {
			s := openDir(t, dir)
			setKnown(t, s, 7, nil)
			crashed := t.TempDir()
			if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if peeked(t, crashed) != nil {
				t.Error("the log continued behind the copy")
			}
			if err := os.Remove(filepath.Join(dir, valuesName)); err != nil {
				t.Fatal(err)
			}
		},
		"another end": func(t *testing.T, dir string) {
			old, err := os.ReadFile(filepath.Join(dir, valuesName))
			if err != nil {
				t.Fatal(err)
			}
			s := openDir(t, dir)
			setKnown(t, s, 7, nil)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			replace(t, dir, old)
		},
		"a torn copy": func(t *testing.T, dir string) {
			content, err := os.ReadFile(filepath.Join(dir, valuesName))
			if err != nil {
				t.Fatal(err)
			}
			replace(t, dir, content[:len(content)-1])
		},
		"an empty copy": func(t *testing.T, dir string) { replace(t, dir, nil) },
		"a further segment": func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, segmentName(2)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a longer segment": func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, segmentName(1)), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write([]byte{0}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := openDir(t, dir)
			setKnown(t, s, 1, map[string]string{KnownPrefix + "a": "1"})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if peeked(t, dir) == nil {
				t.Fatal("the values are not known to begin with")
			}
			change(t, dir)
			if values := peeked(t, dir); values != nil {
				t.Errorf("values %q", values)
			}
		})
	}
}

func replace(t *testing.T, dir string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, valuesName), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestARemovedKeyTakesTheValuesThatRelyOnIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		remove func(t *testing.T, s *Store) error
		gone   bool
	}{
		"a done key":    {func(t *testing.T, s *Store) error { _, err := s.Remove(t.Context(), key(1)); return err }, true},
		"an absent key": {func(t *testing.T, s *Store) error { _, err := s.Remove(t.Context(), key(9)); return err }, false},
		"expired keys":  {func(t *testing.T, s *Store) error { _, err := s.Purge(t.Context()); return err }, false},
		"a sealed transaction, then a key": {func(t *testing.T, s *Store) error {
			tx := begin(t, s)
			tx.Set(KnownPrefix+"b", []byte("2"))
			pending := tx.Seal(nil)
			_, err := s.Remove(t.Context(), key(1))
			if waited := pending.Wait(t.Context()); err == nil {
				err = waited
			}
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := openDir(t, dir)
			setKnown(t, s, 1, map[string]string{KnownPrefix + "a": "1", "plain": "x"})
			if err := test.remove(t, s); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				for _, value := range []string{"a", "b"} {
					if _, ok := s.Value(KnownPrefix + value); ok && test.gone {
						t.Errorf("the value %s is still there", value)
					}
				}
				if _, ok := s.Value(KnownPrefix + "a"); !ok && !test.gone {
					t.Error("the value is gone")
				}
				if _, ok := s.Value("plain"); !ok {
					t.Error("another value is gone")
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if (peeked(t, dir) == nil) != test.gone {
					t.Errorf("values %q", peeked(t, dir))
				}
				s = openDir(t, dir)
			}
		})
	}
}
