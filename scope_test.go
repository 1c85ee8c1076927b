package semel_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

// TestOwnersShareAScopeIfRuleAndPipelineAgree has every pair of a rule and pipeline with others.
func TestOwnersShareAScopeIfRuleAndPipelineAgree(t *testing.T) {
	t.Parallel()
	owner := func(rule, pipeline string) semel.ScopeOwner {
		return semel.ScopeOwner{Rule: rule, Pipeline: pipeline}
	}
	for _, c := range []struct {
		a, b semel.ScopeOwner
		want bool
	}{
		{owner(".id", "p"), owner(".id", "p"), true},
		{owner(".id", ""), owner(".id", ""), true},
		{owner(".id", "p"), owner(".id", ""), true},
		{owner(".id", "p"), owner(".id", "q"), false},
		{owner(".id", "p"), owner(".other", "p"), false},
		{owner(".id", "p"), owner(".other", ""), false},
		{owner(".id", ""), owner(".other", ""), false},
		{owner(".id", "p"), owner(".other", "q"), false},
	} {
		if c.a.Shares(c.b) != c.want || c.b.Shares(c.a) != c.want {
			t.Errorf("%+v shares with %+v: %t and %t, want %t", c.a, c.b, c.a.Shares(c.b), c.b.Shares(c.a), c.want)
		}
	}
}

func TestScopeOwnersSurviveTheirTextForm(t *testing.T) {
	t.Parallel()
	for text, owner := range map[string]semel.ScopeOwner{
		"":                          {},
		".id":                       {Rule: ".id"},
		"\npipeline p":              {Pipeline: "p"},
		".id\npipeline p":           {Rule: ".id", Pipeline: "p"},
		"a\npipeline b\npipeline p": {Rule: "a\npipeline b", Pipeline: "p"},
	} {
		var got semel.ScopeOwner
		if got.Parse(text); got != owner || owner.String() != text {
			t.Errorf("%q is %+v, whose text is %q; want %+v", text, got, owner.String(), owner)
		}
	}
}

// binding is a store whose scopes are bound to a text.
type binding struct {
	semel.Store
	bound string
	err   error
	asked []string // what to bind
}

func (b *binding) BindScope(_ context.Context, _, rule string) (string, error) {
	b.asked = append(b.asked, rule)
	if b.bound == "" {
		b.bound = rule
	}
	return b.bound, b.err
}

func TestAScopeIsBoundToItsFirstOwner(t *testing.T) {
	t.Parallel()
	mine := semel.ScopeOwner{Rule: ".id", Pipeline: "p"}
	for _, c := range []struct {
		name        string
		bound       string
		owner       semel.ScopeOwner
		scope       string
		err         error
		bind, check string // of the errors
	}{
		{name: "unbound", owner: mine},
		{name: "its own", bound: mine.String(), owner: mine},
		{name: "shared", bound: ".id", owner: mine},
		{name: "another pipeline", bound: ".id\npipeline q", owner: mine,
			bind:  "belongs to the pipeline q, so the pipeline p would drop the messages of that pipeline as duplicates",
			check: "belongs to the pipeline q"},
		{name: "another rule", bound: ".other", owner: mine, bind: "has ids found by the rule .other, and ids found by .id could be equal", check: "the rule .other"},
		{name: "a rule that the store cannot name", bound: "\npipeline q", owner: mine, bind: "has ids found by another rule", check: "another rule"},
		{name: "no rule", owner: semel.ScopeOwner{Pipeline: "p"}, bind: "the rule has 11 bytes", check: "the rule has 11 bytes"},
		{name: "the longest rule", owner: semel.ScopeOwner{Rule: strings.Repeat("r", 4096)}},
		{name: "a longer rule", owner: semel.ScopeOwner{Rule: strings.Repeat("r", 4096+1)}, bind: "want 1 to 4096", check: "want 1 to 4096"},
		{name: "a rule that is longer with its pipeline", owner: semel.ScopeOwner{Rule: strings.Repeat("r", 4096-10), Pipeline: "p"}, bind: "want 1 to 4096", check: "want 1 to 4096"},
		{name: "an invalid scope", scope: strings.Repeat("s", semel.MaxKeyBytes+1), owner: mine, bind: "scope", check: "scope"},
		{name: "a store that fails", owner: mine, err: errors.New("no answer"), bind: `bind scope "s": no answer`, check: `bind scope "s": no answer`},
	} {
		scope := c.scope
		if scope == "" {
			scope = "s"
		}
		for call, want := range map[string]string{"bind": c.bind, "check": c.check} {
			store := &binding{bound: c.bound, err: c.err}
			do, asks := semel.BindScope, c.owner.String()
			if call == "check" {
				do, asks = semel.CheckScope, ""
			}
			err := do(t.Context(), store, scope, c.owner)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, %s: %v, want %q", c.name, call, err, want)
			}
			if len(store.asked) > 1 || len(store.asked) == 1 && store.asked[0] != asks || len(store.asked) == 0 && want == "" {
				t.Errorf("%s, %s: the store was asked to bind %q", c.name, call, store.asked)
			}
			var wrong *semel.ScopeError
			var bound semel.ScopeOwner
			bound.Parse(c.bound)
			if errors.As(err, &wrong) && (wrong.Scope != scope || wrong.Owner != c.owner || wrong.Bound != bound || !errors.Is(err, semel.ErrInvalidRequest) || errors.Is(err, semel.ErrLate)) {
				t.Errorf("%s, %s: %+v", c.name, call, wrong)
			}
		}
	}
	var plain struct{ semel.Store } // it binds no scopes
	if err := semel.BindScope(t.Context(), plain, "s", semel.ScopeOwner{}); err != nil {
		t.Error(err)
	}
}
