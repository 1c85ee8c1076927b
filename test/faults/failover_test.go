package faults

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// pair is a server and the one that takes over.
type pair struct {
	t *testing.T
	// through finds the present primary, direct names the later one.
	through, direct setting
	modes           []mode
	// fences: tokens grow over a failover that forgets them.
	fences bool
	// caughtUp reports whether the second server has all that the first has.
	caughtUp func() bool
	// detach ends replication, and fails the test if it does not.
	detach func()
	// failOver kills the first server and has the second take over.
	failOver func()
}

func redisPair(t *testing.T) *pair {
	t.Helper()
	s := servicestest.StartRedisSentinel(t, &services.RedisOptions{Args: []string{"--appendfsync", "always"}})
	// Sentinels end the connections of a server whose role they change.
	do := func(server *services.Server, command ...string) (answer any) {
		eventually(t, command[0]+" is answered", func() bool {
			var err error
			answer, err = services.RedisDo(t.Context(), server.Addr(), command...)
			return err == nil
		})
		return answer
	}
	role := func() string { return do(s.Replica, "ROLE").([]any)[0].(string) }
	return &pair{
		t:       t,
		through: setting{Kind: onRedis, Redis: "redis://" + strings.Join(s.Addrs(), ","), Master: services.MasterName},
		direct:  setting{Kind: onRedis, Redis: s.Replica.URL()},
		modes:   []mode{retry, hold},
		fences:  true,
		caughtUp: func() bool {
			behind := do(s.Master, "ROLE").([]any)
			return len(behind[2].([]any)) == 1 && field(do(s.Replica, "INFO", "replication").(string), "slave_repl_offset") ==
				field(do(s.Master, "INFO", "replication").(string), "master_repl_offset")
		},
		detach: func() {
			if err := s.Detach(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the replica has lost its master", func() bool {
				return field(do(s.Replica, "INFO", "replication").(string), "master_link_status") == "down"
			})
		},
		failOver: func() {
			if role() != "slave" {
				t.Fatalf("the replica is a %s before the failover", role())
			}
			if err := s.KillMaster(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Sentinels that were kept from running do nothing for 30 seconds.
			within(t, 3*time.Minute, "the replica is the master", func() bool { return role() == "master" })
		},
	}
}

func postgresPair(t *testing.T) *pair {
	t.Helper()
	primary := servicestest.StartPostgres(t, nil)
	migrate(t, primary, pgstore.CleanupDelete)
	execute(t, primary.URL(), effectsTable)
	standby := servicestest.StartStandby(t, primary, nil)
	ask := func(server *services.Server, statement string) string {
		answer, err := query(t.Context(), server.URL(), statement)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		return answer
	}
	recovering := func() string { return ask(standby, `SELECT pg_is_in_recovery()::text`) }
	return &pair{
		t: t,
		through: setting{Kind: onPostgres,
			Postgres: "postgres://postgres@" + primary.Addr() + "," + standby.Addr() + "/postgres?target_session_attrs=read-write&connect_timeout=2"},
		direct: setting{Kind: onPostgres, Postgres: standby.URL()},
		modes:  []mode{retry, hold, sameTx},
		caughtUp: func() bool {
			return ask(standby, `SELECT pg_last_wal_replay_lsn()::text`) == ask(primary, `SELECT pg_current_wal_lsn()::text`)
		},
		detach: func() {
			execute(t, standby.URL(), `ALTER SYSTEM SET primary_conninfo = ''`)
			execute(t, standby.URL(), `SELECT pg_reload_conf()`)
			eventually(t, "the primary has stopped sending to the standby", func() bool {
				return ask(primary, `SELECT count(*)::text FROM pg_stat_replication`) == "0"
			})
		},
		failOver: func() {
			if was := recovering(); was != "true" {
				t.Fatalf("the standby is in recovery: %s", was)
			}
			if err := primary.Kill(); err != nil {
				t.Fatal(err)
			}
			execute(t, standby.URL(), `SELECT pg_promote()`)
			eventually(t, "the standby is a primary", func() bool { return recovering() == "false" })
		},
	}
}

// TestFailoverToALaggingReplicaLosesUnreplicatedKeys counts what asynchronous
// replication costs, and compares it with what explain says of a pipeline over that
// store: exactly the keys that the replica missed have their effect again. None is
// lost, and none is called a duplicate that is not.
func TestFailoverToALaggingReplicaLosesUnreplicatedKeys(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *pair{onRedis: redisPair, onPostgres: postgresPair} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			l := newLoad(t, p.through, p.modes, quietLease)
			l.mustWave(100)
			eventually(t, "the replica has all", p.caughtUp)
			p.detach()
			missed := l.mustWave(40)
			p.failOver()
			p.wantForgotten(missed, l.next)
			// Everything is delivered once more.
			for _, w := range l.workers {
				w.name += " again"
			}
			var all []string
			for _, m := range p.modes {
				all = append(all, inputs(m, 0, l.next)...)
			}
			if err := l.process(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			_, reports := l.reports(p.direct, byToken)
			for m, r := range reports {
				p.wantLoss(m, r, inputsOf(m, missed))
				wantException(t, p.through.Kind, m, len(inputsOf(m, missed)))
				r.wantSafe(t)
			}
			l.wantNoneInProgress(p.direct)
		})
	}
}

// wantLoss fails the test unless exactly the missed keys suffered from the
// failover, and removes them from the report.
func (p *pair) wantLoss(m mode, r *report, missed []string) {
	p.t.Helper()
	if m == sameTx {
		// The effects were lost together with their keys. The workers have repeated
		// them, so each is there once, but not under its first acknowledgement.
		if len(r.Repeated) > 0 || !slices.Equal(r.Wrong, missed) {
			p.t.Errorf("%s: %d effects are there twice, and %d are not those that were acknowledged; want none, and the %d that the replica missed",
				m, len(r.Repeated), len(r.Wrong), len(missed))
		}
		r.Wrong = nil
		return
	}
	again := append(slices.Clone(r.Forgotten), r.Late...)
	slices.Sort(again)
	if !slices.Equal(again, missed) || !slices.Equal(r.Repeated, missed) {
		p.t.Errorf("%s: the effects of %d keys happened again after they were acknowledged, and those of %d twice; want the %d that the replica missed",
			m, len(again), len(r.Repeated), len(missed))
	}
	if p.fences && len(r.Late) > 0 {
		p.t.Errorf("%s: the tokens of %d keys fell in the failover", m, len(r.Late))
	}
	r.Forgotten = nil
	if !p.fences {
		r.Unmarked = nil // the sequence of tokens fell back as well
	}
}

// wantForgotten fails the test unless the new primary lacks exactly the keys
// that it missed, and the effects that were committed with them.
func (p *pair) wantForgotten(missed []string, n int) {
	p.t.Helper()
	store, err := p.direct.open(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer store.close()
	for _, m := range p.modes {
		names, want := inputs(m, 0, n), inputsOf(m, missed)
		records, err := store.states(p.t.Context(), keysOf(names))
		if err != nil {
			p.t.Fatal(err)
		}
		var absent []string
		for i, r := range records {
			if r.State == semel.Absent {
				absent = append(absent, names[i])
			}
		}
		slices.Sort(absent)
		if !slices.Equal(absent, want) {
			p.t.Errorf("%s: the new primary has forgotten %d keys, and missed %d", m, len(absent), len(want))
		}
		p.t.Logf("%s: %d of %d keys are forgotten", m, len(absent), n)
		if m != sameTx {
			continue
		}
		rows, err := committed(p.t.Context(), p.direct.Postgres)
		if err != nil {
			p.t.Fatal(err)
		}
		if len(rows) != n-len(want) {
			p.t.Errorf("%s: %d of %d effects are left; want those whose keys are", m, len(rows), n)
		}
	}
}

// inputsOf selects the inputs of a mode, sorted.
func inputsOf(m mode, list []string) []string {
	var part []string
	for _, input := range list {
		if strings.HasPrefix(input, string(m)+"/") {
			part = append(part, input)
		}
	}
	slices.Sort(part)
	return part
}

// TestFailoverToASynchronousStandbyLosesNothing kills the primary while workers run.
func TestFailoverToASynchronousStandbyLosesNothing(t *testing.T) {
	t.Parallel()
	p := postgresPair(t)
	primary, _, _ := strings.Cut(p.through.Postgres, ",")
	primary += "/postgres"
	execute(t, primary, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
	execute(t, primary, `SELECT pg_reload_conf()`)
	eventually(t, "the standby is synchronous", func() bool {
		state, err := query(t.Context(), primary, `SELECT coalesce(max(sync_state), 'none') FROM pg_stat_replication`)
		return err == nil && state == "sync"
	})
	l := newLoad(t, p.through, p.modes, loadLease)
	stop := l.start()
	eventually(t, "work goes on", func() bool { return l.waves.Load() >= 3 })
	p.failOver()
	l.waitForIdle()
	stop()
	if failed, _ := l.noticed(); failed == 0 {
		t.Error("no call failed: the failover did not reach the work")
	}
	l.wantSound(p.direct)
	for _, m := range p.modes {
		wantNoException(t, m)
	}
}
