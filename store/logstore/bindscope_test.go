package logstore_test

import (
	"slices"
	"testing"

	"github.com/semel-dev/semel/store/logstore"
)

// TestTransactionBindsAScopeWhenItCommits: an aborted one leaves the scope to any rule.
func TestTransactionBindsAScopeWhenItCommits(t *testing.T) {
	t.Parallel()
	s, err := logstore.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	bind := func(rule, want string, commit bool) {
		t.Helper()
		tx, err := s.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Abort()
		if bound := tx.BindScope("s", rule); bound != want {
			t.Errorf("%s: bound to %s, want %s", rule, bound, want)
		}
		if commit {
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	bind(".wrong", ".wrong", false)
	bind(".id", ".id", true)
	bind(".wrong", ".id", true)
	if scopes, err := s.BoundScopes(t.Context()); err != nil || !slices.Equal(scopes, []string{"s"}) {
		t.Errorf("the bound scopes are %q, %v", scopes, err)
	}
	if bound, err := s.BindScope(t.Context(), "s", ".wrong"); err != nil || bound != ".id" {
		t.Errorf("bound to %s, %v", bound, err)
	}
}
