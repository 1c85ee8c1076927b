package storetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/trytest"
)

// brokenCases returns for each bug the traits of the broken store, and the case that must catch
// the bug.
func brokenCases() map[bug]struct {
	traits semel.Traits
	caught string
} {
	type broken = struct {
		traits semel.Traits
		caught string
	}
	return map[bug]broken{
		marksBeforeCompletion:   {volatile, "one of many concurrent claims wins"},
		ignoresTokenOnComplete:  {volatile, "a stale token changes nothing after take-over"},
		ignoresTokenOnRelease:   {volatile, "a stale token changes nothing after take-over"},
		ignoresTokenOnExtend:    {volatile, "a stale token changes nothing after take-over"},
		losesAttempt:            {volatile, "a takeover of an ended lease increases attempt and token"},
		forgetsOwner:            {volatile, "a claim repeated after a lost reply is the same claim"},
		forgetsDoneOwner:        {volatile, "a done claim repeated after a lost reply is fresh again"},
		comparesNonces:          {volatile, "a done claim of another owner is a duplicate"},
		keepsOwnerInTransaction: {full, "transactions are atomic if and only if transactional"},
		ownsNobodys:             {volatile, "a claim without an owner matches no other claim"},
		grantsTwiceInBatch:      {volatile, "keys that occur twice in a claim are decided in order"},
		forgetsEarly:            {volatile, "a key is remembered for its window and forgotten a tick later"},
		forgetsNever:            {volatile, "a key is remembered for its window and forgotten a tick later"},
		forgetsTooLate:          {volatile, "a key is remembered for its window and forgotten a tick later"},
		dropsEmptyResult:        {volatile, "results are replayed byte for byte"},
		mixesResults:            {volatile, "results of different keys do not mix"},
		lendsResults:            {volatile, "an answer lasts after its call"},
		concatenates:            {volatile, "scope and id are separate parts of a key"},
		acceptsEmptyKey:         {volatile, "only keys out of bounds are refused"},
		ignoresMismatchInFlight: {volatile, "another payload under a known key is a mismatch in every state"},
		retriesHold:             {volatile, "a held key becomes unknown when its lease ends"},
		unknownExpires:          {volatile, "an unknown key does not become fresh by itself"},
		checksThenInserts:       {volatile, "one of many concurrent claims wins"},
		reusesTokens:            {volatile, "release makes the key fresh with a higher token"},
		extendsUnknown:          {volatile, "an unknown key is not extended"},
		keepsFirstLease:         {volatile, "a repeated claim has the later of both lease ends"},
		neverLate:               {volatile, "an old message without a record is late"},
		keepsFirstOrigin:        {full, "a record has the origin of the claim that took effect if and only if origins are kept"},
		keepsCancelledClaims:    {volatile, "a call with a cancelled context changes nothing"},
		followsWall:             {volatile, "a clock that steps back neither shortens nor extends a lease or window"},
		losesOnReopen:           {full, "completions survive if and only if durable"},
		losesClaimsOnReopen:     {full, "claims without hold survive if and only if claims are durable"},
		losesExtensionsOnReopen: {full, "claims without hold survive if and only if claims are durable"},
		losesOwnersOnReopen:     {full, "claims without hold survive if and only if claims are durable"},
		purgesClaims:            {volatile, "purge under load forgets no live key"},
		commitsAlways:           {full, "transactions are atomic if and only if transactional"},
		hidesTransacted:         {full, "list yields the records of a state or scope"},
		bindsAgain:              {full, "a scope keeps the first rule"},
		bindsNothing:            {full, "a scope keeps the first rule"},
		restartsTokens:          {volatile, "tokens only grow, also over a reopen"},
		leavesOutcomesOpen:      {volatile, "each refusal has its class"},
		forgetsClasses:          {volatile, "each refusal has its class"},
		storesTooMuch:           {semel.Traits{Exact: true, Results: true, MaxResult: 100}, "each refusal has its class"},
		refusesWithoutClass:     {alone, "a second open store has the same records if and only if shared"},
	}
}

func TestSuiteCatchesBrokenStores(t *testing.T) {
	t.Parallel()
	for b, broken := range brokenCases() {
		t.Run(strings.ReplaceAll(string(b), " ", "-"), func(t *testing.T) {
			t.Parallel()
			if failures := tryCase(t, broken.caught, harnessOf(broken.traits, b)); len(failures) == 0 {
				t.Errorf("a store that %s passes the case %q", b, broken.caught)
			}
		})
	}
}

// TestRandomCasesCatchBrokenStoresAsWell runs the cases without a specific
// target against a choice of bugs.
func TestRandomCasesCatchBrokenStoresAsWell(t *testing.T) {
	t.Parallel()
	for name, bugs := range map[string][]bug{
		"random calls are answered as the model says": {
			marksBeforeCompletion, ignoresTokenOnComplete, ignoresTokenOnRelease, ignoresTokenOnExtend, losesAttempt,
			forgetsOwner, forgetsDoneOwner, grantsTwiceInBatch, forgetsEarly, forgetsNever, forgetsTooLate, mixesResults, dropsEmptyResult,
			ignoresMismatchInFlight, retriesHold, unknownExpires, extendsUnknown, reusesTokens, neverLate, losesOnReopen,
		},
		"histories of one key are linearizable": {
			marksBeforeCompletion, ignoresTokenOnComplete, ignoresTokenOnRelease, losesAttempt, forgetsOwner,
			mixesResults, checksThenInserts, reusesTokens,
		},
	} {
		for _, b := range bugs {
			t.Run(strings.ReplaceAll(name+"/"+string(b), " ", "-"), func(t *testing.T) {
				t.Parallel()
				// One draw of a random case may miss a bug. Each try draws another one.
				for range 8 {
					if failures := tryCase(t, name, harnessOf(brokenCases()[b].traits, b)); len(failures) > 0 {
						return
					}
				}
				t.Errorf("a store that %s passes the case %q", b, name)
			})
		}
	}
}

func TestFailingRandomCaseIsShrunk(t *testing.T) {
	t.Parallel()
	failures := tryCase(t, "random calls are answered as the model says", harnessOf(volatile, losesAttempt))
	if len(failures) != 1 || strings.Count(failures[0], "\n") > 40 || !strings.Contains(failures[0], "the attempt is 1, want 2") {
		t.Errorf("a store that %s is reported as %q", losesAttempt, failures)
	}
	if !strings.Contains(failures[0], "SEMEL_SEED=") {
		t.Errorf("the failure does not say how to repeat it: %q", failures)
	}
}

// tryCase runs one case of the suite and returns its failures.
func tryCase(t *testing.T, name string, h Harness) []string {
	t.Helper()
	i := slices.IndexFunc(allCases(), func(c testCase) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no case %q", name)
	}
	return trytest.Run(t, func(tb testing.TB) { allCases()[i].check(newEnv(tb, h)) })
}

// TestSuiteCatchesWrongTraits runs a correct store that reports a trait without having it, or
// omits a trait.
func TestSuiteCatchesWrongTraits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		real   semel.Traits
		claim  func(*semel.Traits)
		caught string
	}{
		"durable, and is not":        {volatile, func(t *semel.Traits) { t.Durable = true }, "completions survive if and only if durable"},
		"durable claims, and none":   {alone, func(t *semel.Traits) { t.DurableClaims = true }, "claims without hold survive if and only if claims are durable"},
		"no durable claims, and has": {full, func(t *semel.Traits) { t.DurableClaims = false }, "claims without hold survive if and only if claims are durable"},
		"durable claims alone":       {volatile, func(t *semel.Traits) { t.DurableClaims = true }, "traits are consistent and constant"},
		"not durable, and is":        {full, func(t *semel.Traits) { t.Durable = false }, "completions survive if and only if durable"},
		"hides that it holds":        {full, func(t *semel.Traits) { t.Durable = false }, "holds survive if and only if durable"},
		"shared, and is not":         {volatile, func(t *semel.Traits) { t.Shared = true }, "a second open store has the same records if and only if shared"},
		"not shared, and is":         {full, func(t *semel.Traits) { t.Shared = false }, "a second open store has the same records if and only if shared"},
		"results, and none":          {semel.Traits{Exact: true}, func(t *semel.Traits) { t.Results = true }, "results are replayed byte for byte"},
		"no results, and has":        {volatile, func(t *semel.Traits) { t.Results = false }, "results are replayed byte for byte"},
		"not exact, and is":          {volatile, func(t *semel.Traits) { t.Exact = false }, "keys are distinguished if and only if exact"},
		"transactional alone":        {volatile, func(t *semel.Traits) { t.Transactional = true }, "traits are consistent and constant"},
		"power safe alone":           {volatile, func(t *semel.Traits) { t.PowerSafe = true }, "traits are consistent and constant"},
		"too fine a tick": {func() semel.Traits { t := volatile; t.Tick = time.Minute; return t }(),
			func(t *semel.Traits) { t.Tick = time.Second }, "a key is remembered for its window and forgotten a tick later"},
		"origins, and none":   {volatile, func(t *semel.Traits) { t.Origins = true }, "a record has the origin of the claim that took effect if and only if origins are kept"},
		"no origins, and has": {full, func(t *semel.Traits) { t.Origins = false }, "a record has the origin of the claim that took effect if and only if origins are kept"},
		"too low a limit":     {volatile, func(t *semel.Traits) { t.MaxResult = 100 }, "a result above the limit is refused and the claim stays"},
		"no limit told": {func() semel.Traits { t := volatile; t.MaxResult = 100; return t }(),
			func(t *semel.Traits) { t.MaxResult = 0 }, "results are replayed byte for byte"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			claimed := c.real
			c.claim(&claimed)
			h := harnessOf(c.real, none)
			inner := h.New
			h.New = func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
				open := inner(tb, now)
				return func() (semel.Store, error) {
					store, err := open()
					if err != nil {
						return nil, err
					}
					return &boaster{store.(*reference), claimed}, nil
				}
			}
			if claimed.Exact {
				h.Collide = nil
			}
			if failures := tryCase(t, c.caught, h); len(failures) == 0 {
				t.Errorf("a store that says %s passes the case %q", name, c.caught)
			}
		})
	}
}

// boaster is a store that reports other traits than it has.
type boaster struct {
	*reference
	claimed semel.Traits
}

// Traits implements semel.Store.
func (b *boaster) Traits() semel.Traits { return b.claimed }
