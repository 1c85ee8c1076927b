package logstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// TestDeletedDirectoryStopsTheStore takes files away from a store that is in use. It must not
// accept keys that the next process would not find.
func TestDeletedDirectoryStopsTheStore(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(dir string) error{
		"deleted":             os.RemoveAll,
		"renamed":             func(dir string) error { return os.Rename(dir, dir+"-away") },
		"a segment deleted":   func(dir string) error { return os.Remove(filepath.Join(dir, segmentName(1))) },
		"the lock deleted":    func(dir string) error { return os.Remove(filepath.Join(dir, lockName)) },
		"deleted and created": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
		"replaced by another store": func(dir string) error {
			if err := os.Rename(dir, dir+"-away"); err != nil {
				return err
			}
			other, err := Open(dir, nil)
			if err != nil {
				return err
			}
			return other.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "store")
			synctest.Test(t, func(t *testing.T) {
				s, err := Open(dir, nil)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * lookPeriod)
				synctest.Wait()
				if err := s.Ready(t.Context()); err != nil {
					t.Errorf("before: %v", err)
				}
				if err := damage(dir); err != nil {
					t.Fatal(err)
				}
				time.Sleep(lookPeriod)
				synctest.Wait()
				if err := s.Ready(t.Context()); !errors.Is(err, semel.ErrStoreFailed) || !strings.Contains(err.Error(), dir) {
					t.Errorf("the store is ready: %v", err)
				}
				_ = s.Close() // it has failed
			})
		})
	}
}
