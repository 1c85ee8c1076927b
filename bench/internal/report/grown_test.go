package report

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel/bench/internal/result"
)

func TestPageShowsGrowthAndCosts(t *testing.T) {
	t.Parallel()
	how := result.Measured{Work: "claims of new keys", Command: "run it", Date: "2026-01-02T03:04:05Z", Machine: "a machine"}
	all := Measurements{
		Results: measurements(),
		Growth: []result.Growth{
			{Store: "redis", Keys: 1_000_000, Rate: 200_000, P99: 0.5, Memory: 250, Disk: 300, Restart: 2, Restore: 3, Measured: how},
			{Store: "embedded", Keys: 10_000_000, Rate: 1_000_000, P99: 0.2, Memory: 120, Disk: 200, Restart: 0.9, Restore: 1.5, Measured: how},
			{Store: "embedded", Keys: 1_000_000, Rate: 2_000_000, P99: 0.1, Memory: 40, Disk: 20, Restart: 0.1, Restore: 0.2, Measured: how},
		},
		Costs: []result.Cost{
			{Scenario: "rabbitmq", Messages: 200_000, Ours: result.Spent{CPU: 12.5, Servers: 30, Network: 900.4, Disk: 700, Memory: 60}, Peer: &result.Spent{CPU: 9, Servers: 25, Network: 800, Disk: 500, Memory: 50}, PeerVersion: "a plain program", Measured: how},
			{Scenario: "windows", Messages: 1_000_000, Ours: result.Spent{CPU: 3, Servers: 2, Network: 400, Disk: 300, Memory: 200}, Measured: how},
		},
	}
	var b strings.Builder
	s := summary{page: page{w: &b}}
	files := map[string]string{}
	s.growth(all.Growth, files)
	s.costs(all.Costs)
	inOrderOf(t, b.String(),
		"![New keys a second, by the number of keys (longer is better). Figures below.](charts/growth.svg)\n",
		"|store, keys|keys/s|p99, ms|memory, MiB|disk, MiB|restart, s|cold, s|\n",
		"|[embedded, 1 M](../bench/results/README.md#growth)|2.00 M|0.1|40.0|20.0|0.1|0.2|\n",
		"|[embedded, 10 M](../bench/results/README.md#growth)|1.00 M|0.2|120|200|0.9|1.50|\n",
		"|[Redis, 1 M](../bench/results/README.md#growth)|200 k|0.5|250|300|2.00|3.00|\n",
		"|scenario|CPU, s|network, MiB|disk, MiB|memory, MiB|\n",
		"|[rabbitmq](../bench/results/README.md#cost)|12.5+30.0/9.00+25.0|900/800|700/500|60/50|\n",
		"|[windows](../bench/results/README.md#cost)|3.00+2.00|400|300|200|\n",
	)
	inOrderOf(t, files[growthChart],
		"<title>New keys a second, by the number of keys (longer is better). embedded, 1 M keys: 2.00 M; embedded, 10 M keys: 1.00 M; Redis, 1 M keys: 200 k.</title>",
		">embedded</text>", ">1 M keys</text>", `width="440.0"`, ">10 M keys</text>", `width="220.0"`, ">Redis</text>", `width="44.0"`,
	)
	b.Reset()
	if err := WriteTables(&b, all); err != nil {
		t.Fatal(err)
	}
	inOrderOf(t, b.String(),
		`<a id="growth"></a>`, "|[embedded, 1 M](#growth)|", "\nembedded, 1 M keys: Claims of new keys.\n\n    run it\n\n2026-01-02T03:04:05Z, a machine\n",
		`<a id="cost"></a>`, "|[rabbitmq](#cost)|", "\nrabbitmq, 200000 messages: Claims of new keys. Without keys: a plain program.\n", "\nwindows, 1 M messages: Claims of new keys. Without keys: no program.\n",
	)
}

// inOrderOf checks that a text has parts, one behind the other.
func inOrderOf(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, behind, ok := strings.Cut(rest, part)
		if !ok {
			t.Fatalf("the text lacks %q in its place:\n%s", part, text)
		}
		rest = behind
	}
}
