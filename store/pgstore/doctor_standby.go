package pgstore

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/semel-dev/semel"
)

// replication is what a primary says of the servers that follow it.
type replication struct {
	names, commit string // synchronous_standby_names, synchronous_commit
	// synchronous are those that commits wait for, asynchronous the others that
	// could take over, and unseen those of which this role may not see which
	// they are.
	synchronous, asynchronous, unseen int
}

// standbysSQL counts those who follow. A logical subscriber and a backup cannot
// take over; but commits wait for a subscriber that is named.
const standbysSQL = `SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
	count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')),
	count(*) FILTER (WHERE r.sync_state NOT IN ('sync', 'quorum') AND r.state <> 'backup' AND s.pid IS NULL),
	count(*) FILTER (WHERE r.sync_state IS NULL AND s.pid IS NULL)
FROM pg_stat_replication AS r
LEFT JOIN (SELECT active_pid AS pid FROM pg_replication_slots WHERE slot_type = 'logical') AS s ON s.pid = r.pid`

// standbys judges what a failover forgets. Of a server that is a standby itself
// it is enough that it is one.
func (e *examination) standbys(ctx context.Context) error {
	var r replication
	var standby bool
	err := e.ask(ctx, standbysSQL, nil, &standby, &r.names, &r.commit, &r.synchronous, &r.asynchronous, &r.unseen)
	if err == nil && !standby {
		e.judgeStandbys(r)
	}
	return err
}

func (e *examination) judgeStandbys(r replication) {
	found := fmt.Sprintf("%d standbys, %d of them synchronous, synchronous_standby_names = '%s'", r.synchronous+r.asynchronous+r.unseen, r.synchronous, r.names)
	const forgets = "a failover to an asynchronous standby forgets the keys that had not reached it: their effects are repeated"
	switch {
	case r.names == "":
		e.judge(r.asynchronous+r.unseen > 0, semel.Warning, "synchronous_standby_names", found, forgets,
			"name at least one standby in synchronous_standby_names, or fail over to none that lags")
	case r.commit == "local" || r.commit == "off":
		e.judge(true, semel.Warning, "synchronous standbys", found+", synchronous_commit = "+r.commit,
			"commits do not wait for the synchronous standby: a failover forgets keys, whose effects are repeated", "set synchronous_commit = on for this role")
	case r.unseen == 0 && r.synchronous < awaited(r.names):
		e.judge(true, semel.Broken, "synchronous_standby_names", found,
			"no key can be claimed: every commit waits for standbys that are not there",
			"start the standbys that are named, or change synchronous_standby_names")
	default:
		e.judge(r.asynchronous > 0, semel.Warning, "synchronous_standby_names", found, forgets,
			"fail over to synchronous standbys alone, or name all of them in synchronous_standby_names")
	}
}

var numbered = regexp.MustCompile(`(?i)^\s*(?:first|any)?\s*([0-9]+)\s*\(`)

// awaited returns how many standbys a commit waits for, by the setting
// synchronous_standby_names that is not empty.
func awaited(names string) int {
	if m := numbered.FindStringSubmatch(names); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 1
}
