package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel/bench/internal/result"
)

// Measurements are all that was measured.
type Measurements struct {
	Results []result.Result
	Growth  []result.Growth
	Costs   []result.Cost
}

// grownStores are the stores of the table of growth, in order, with their names for people.
var grownStores = [...]struct{ store, title string }{
	{"embedded", "embedded"}, {"embedded-1gib", "embedded, 1 GiB"}, {"kafka", "Kafka transactions"}, {"postgres", "PostgreSQL"}, {"redis", "Redis"},
}

// grownTitle returns the name of a store for people.
func grownTitle(store string) string {
	for _, g := range grownStores {
		if g.store == store {
			return g.title
		}
	}
	return store
}

// inOrder returns growth in the order of grownStores and of the number of keys.
func inOrder(list []result.Growth) []result.Growth {
	at := func(g result.Growth) int {
		for i, known := range grownStores {
			if known.store == g.Store {
				return i
			}
		}
		return len(grownStores)
	}
	return slices.SortedStableFunc(slices.Values(list), func(a, b result.Growth) int {
		return cmp.Or(at(a)-at(b), strings.Compare(a.Store, b.Store), a.Keys-b.Keys)
	})
}

// growthChart is the path of the chart of growth.
const growthChart = "charts/growth.svg"

// growth writes the table of growth, and adds its chart to the files.
func (s *summary) growth(list []result.Growth, files map[string]string) {
	s.print("\n## When keys grow\n\n" +
		"The rate is that of new keys over the last tenth. p99 is that of a single claim; with Kafka, from the record to its committed output. " +
		"Restart is from a start after SIGKILL to the first answers. A cold start has no file in the system's cache; with Kafka, it reads all keys from the brokers. " +
		"PostgreSQL and Redis first read their own logs again. With an index of 1 GiB, most keys of the embedded store are only on disk.\n\n")
	const title = "New keys a second, by the number of keys (longer is better)"
	files[growthChart] = grownChart(title, inOrder(list))
	s.print("![%s. Figures below.](%s)\n\n", title, growthChart)
	s.grownRows(list, tables)
}

// grownRows writes the table of growth. Its links are into the page of this path.
func (p *page) grownRows(list []result.Growth, tables string) {
	p.print("|store, keys|keys/s|p99, ms|memory, MiB|disk, MiB|restart, s|cold, s|\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, g := range inOrder(list) {
		p.print("|[%s, %s](%s#growth)|%s|%s|%s|%s|%s|%s|\n", grownTitle(g.Store), keys(g.Keys), tables,
			number(g.Rate), digits(g.P99), number(g.Memory), number(g.Disk), digits(g.Restart), digits(g.Restore))
	}
}

// grownChart draws the rates of all stores.
func grownChart(title string, list []result.Growth) string {
	var groups []group
	var alt []string
	for _, g := range list {
		if len(groups) == 0 || groups[len(groups)-1].title != grownTitle(g.Store) {
			groups = append(groups, group{title: grownTitle(g.Store)})
		}
		of := &groups[len(groups)-1]
		of.bars = append(of.bars, column{"semel", keys(g.Keys) + " keys", g.Rate})
		alt = append(alt, fmt.Sprintf("%s, %s keys: %s", grownTitle(g.Store), keys(g.Keys), number(g.Rate)))
	}
	return draw(title, title+". "+strings.Join(alt, "; ")+".", groups)
}

// keys formats a number of keys.
func keys(n int) string {
	if n >= 1e6 {
		return fmt.Sprintf("%g M", float64(n)/1e6)
	}
	return fmt.Sprint(n)
}

// costs writes the table of costs.
func (s *summary) costs(list []result.Cost) {
	s.print("\n## What keys cost\n\n" +
		"For a million messages of each scenario of `semel init`. A tenth are duplicates, a fifth in `quickstart`, and none in `order-service`. After a slash: the same source and target without keys. " +
		"CPU is that of the program and, after a plus, of all servers. Network and disk are those of all. " +
		"Webhooks and HTTP requests take one message each, so few claims go together. `sns` checks signatures. Most of `sqs` is ElasticMQ.\n\n")
	s.costRows(list, tables)
}

// costRows writes the table of costs. Its links are into the page of this path.
func (p *page) costRows(list []result.Cost, tables string) {
	p.print("|scenario|CPU, s|network, MiB|disk, MiB|memory, MiB|\n|---|--:|--:|--:|--:|\n")
	for _, c := range list {
		cell := func(of func(*result.Spent) string) string {
			if c.Peer == nil {
				return of(&c.Ours)
			}
			return of(&c.Ours) + "/" + of(c.Peer)
		}
		p.print("|[%s](%s#cost)|%s|%s|%s|%s|\n", c.Scenario, tables,
			cell(func(s *result.Spent) string { return digits(s.CPU) + "+" + digits(s.Servers) }),
			cell(func(s *result.Spent) string { return whole(s.Network) }),
			cell(func(s *result.Spent) string { return whole(s.Disk) }),
			cell(func(s *result.Spent) string { return whole(s.Memory) }))
	}
}

// whole formats a value without a fraction.
func whole(v float64) string { return fmt.Sprintf("%.0f", v) }

// growthTables writes growth and costs with their commands, below the tables of all results.
func (p *page) growthTables(all *Measurements) {
	if len(all.Growth) > 0 {
		p.print("\n<a id=\"growth\"></a>\n\n## When keys grow\n\n")
		p.grownRows(all.Growth, "")
		for _, g := range inOrder(all.Growth) {
			p.print("\n%s, %s keys: %s\n\n    %s\n\n%s, %s\n", grownTitle(g.Store), keys(g.Keys), sentence(g.Work), g.Command, g.Date, g.Machine)
		}
	}
	if len(all.Costs) > 0 {
		p.print("\n<a id=\"cost\"></a>\n\n## What a million messages cost\n\n")
		p.costRows(all.Costs, "")
		for _, c := range all.Costs {
			peer := "no program"
			if c.Peer != nil {
				peer = c.PeerVersion
			}
			p.print("\n%s, %s messages: %s Without keys: %s.\n\n    %s\n\n%s, %s\n", c.Scenario, keys(c.Messages), sentence(c.Work), peer, c.Command, c.Date, c.Machine)
		}
	}
}
