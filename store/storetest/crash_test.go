package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/trytest"
	"github.com/semel-dev/semel/vfs"
)

// crashBug is one fault that a durable store may have.
type crashBug string

const (
	noCrashBug           crashBug = ""
	syncsNever           crashBug = "syncs never, and says so"
	saysPowerSafe        crashBug = "syncs never and says it is safe"
	syncsNoDirectory     crashBug = "does not sync directories"
	answersBeforeWriting crashBug = "answers although it could not write"
	answersClaimsFirst   crashBug = "answers claims before they are durable"
	answersLeasesFirst   crashBug = "answers extensions before they are durable"
	writesFirst          crashBug = "writes changes that it has not decided"
	ignoresChecksums     crashBug = "ignores checksums"
	cutsAnything         crashBug = "takes damage in the middle for a torn end"
	refusesTornTail      crashBug = "takes a torn end for damage"
	retriesSync          crashBug = "tries a failed sync again"
	ignoresSyncErrors    crashBug = "ignores errors of sync"
	goesOnAfterErrors    crashBug = "continues after a failed write"
	forgetsItsEnd        crashBug = "does not know where its log ended"
	writesWhenClosed     crashBug = "writes when it is closed"
)

func crashHarnessOf(bug crashBug) CrashHarness {
	return CrashHarness{
		Open: func(fs vfs.FS, dir string, now func() time.Time) (semel.Store, error) {
			return openLogged(fs, dir, now, bug)
		},
		Transact: transactLogged,
		Large:    500,
	}
}

func TestLoggedReferenceStorePassesTheCrashSuite(t *testing.T) {
	t.Parallel()
	RunCrash(t, crashHarnessOf(noCrashBug))
}

func TestStoreThatNeverSyncsPassesTheCrashSuiteAsNotDurable(t *testing.T) {
	t.Parallel()
	RunCrash(t, crashHarnessOf(syncsNever))
}

func TestCrashSuiteCatchesBrokenStores(t *testing.T) {
	t.Parallel()
	for bug, caught := range map[crashBug]string{
		saysPowerSafe:        "a crash at any operation loses nothing acknowledged",
		syncsNoDirectory:     "a crash at any operation loses nothing acknowledged",
		answersBeforeWriting: "a full disk is refused cleanly at any operation",
		answersClaimsFirst:   "a crash at any operation loses nothing acknowledged",
		answersLeasesFirst:   "a crash at any operation loses nothing acknowledged",
		writesFirst:          "a crash at any operation loses nothing acknowledged",
		ignoresChecksums:     "a flipped bit causes no false duplicate and no silent loss",
		cutsAnything:         "a flipped bit causes no false duplicate and no silent loss",
		refusesTornTail:      "a crash at any operation loses nothing acknowledged",
		retriesSync:          "a failed sync stops the store until it is reopened",
		ignoresSyncErrors:    "a failed sync stops the store until it is reopened",
		goesOnAfterErrors:    "a failed sync stops the store until it is reopened",
		forgetsItsEnd:        "records at the end of a closed store do not vanish silently",
		writesWhenClosed:     "a crash at any operation loses nothing acknowledged",
	} {
		t.Run(strings.ReplaceAll(string(bug), " ", "-"), func(t *testing.T) {
			t.Parallel()
			for _, c := range crashCases {
				if c.name != caught {
					continue
				}
				failures := trytest.Run(t, func(tb testing.TB) { c.check(newCrashEnv(tb, crashHarnessOf(bug))) })
				if len(failures) == 0 {
					t.Errorf("a store that %s passes the case %q", bug, caught)
				} else {
					t.Log(failures[0])
				}
				return
			}
			t.Errorf("there is no case %q", caught)
		})
	}
}

// TestSuiteOfCopies accepts the store with a log, even if it does not sync, and catches the bugs
// that an end of the process shows.
func TestSuiteOfCopies(t *testing.T) {
	t.Parallel()
	for bug, passes := range map[crashBug]bool{noCrashBug: true, syncsNever: true, answersClaimsFirst: false, answersLeasesFirst: false, writesWhenClosed: false} {
		t.Run(strings.ReplaceAll(string(bug), " ", "-"), func(t *testing.T) {
			t.Parallel()
			h := CopyHarness{Large: 500, Transact: transactLogged, Open: func(dir string, now func() time.Time) (semel.Store, error) {
				return openLogged(vfs.OS{}, dir, now, bug)
			}}
			failures := trytest.Run(t, func(tb testing.TB) { copies(tb, h) })
			if (len(failures) == 0) != passes {
				t.Errorf("a store that %s: %q", bug, failures)
			}
		})
	}
}
