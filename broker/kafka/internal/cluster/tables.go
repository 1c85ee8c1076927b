package cluster

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// TableProblem returns the problem with the settings of a table's topic, or "". A topic
// must keep the newest record of each key, and former ones for the history. Settings that
// are not visible are trusted.
func TableProblem(settings map[string]string, history time.Duration) (found, cost, remedy string) {
	policy, visible := settings["cleanup.policy"]
	if !visible {
		return "", "", ""
	}
	if strings.Contains(policy, "delete") {
		for _, name := range []string{"retention.ms", "retention.bytes"} {
			if keeps, err := strconv.ParseInt(settings[name], 10, 64); err == nil && keeps >= 0 {
				return "cleanup.policy " + policy + " and " + name + " " + settings[name], "the broker deletes rows, and a process that starts later lacks them", "set cleanup.policy=compact"
			}
		}
	}
	if history == 0 || !strings.Contains(policy, "compact") {
		return "", "", ""
	}
	for _, name := range []string{"min.compaction.lag.ms", "delete.retention.ms"} {
		if keeps, err := strconv.ParseInt(settings[name], 10, 64); err == nil && keeps < history.Milliseconds() {
			return name + " " + settings[name], fmt.Sprintf("compaction deletes former rows before the history of %v is over", history), fmt.Sprintf("set %s=%d", name, history.Milliseconds())
		}
	}
	return "", "", ""
}
