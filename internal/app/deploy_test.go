package app

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/measure"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

const deployed = "../../deploy/"

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// named returns the metrics that a text names. A name with a colon is recorded by
// a rule.
func named(text string) []string {
	var names []string
	for _, found := range regexp.MustCompile(`[a-z:_0-9]+`).FindAllString(text, -1) {
		for _, start := range []string{"dedup_", "process_", "go_"} {
			if strings.HasPrefix(found, start) && !strings.Contains(found, ":") && !slices.Contains(names, found) {
				names = append(names, found)
			}
		}
	}
	return names
}

// Every metric in these files exists in a running daemon, and the page describes
// every metric that exists.
func TestMetricsThatAreNamedExist(t *testing.T) {
	t.Parallel()
	l := start(t, input(20), servers.Database(t))
	var exposition string
	waitFor(t, "the stores to be measured", func() bool {
		exposition = l.scrape(t)
		return value(exposition, `dedup_messages_settled_total{pipeline="rows"}`) == 20 &&
			value(exposition, `dedup_store_measured_timestamp_seconds{store="db"}`) > 0 &&
			value(exposition, `dedup_store_measured_timestamp_seconds{store="own"}`) > 0 &&
			value(exposition, `dedup_cleanup_passes_total{outcome="ok",store="db"}`) > 0 &&
			value(exposition, `dedup_messages_settled_total{pipeline="topic"}`) == 20 &&
			value(exposition, `dedup_source_lag_messages{partition="0",pipeline="topic",source="in"}`) == 0 &&
			value(exposition, `dedup_source_lag_messages{partition="1",pipeline="topic",source="in"}`) == 0 &&
			value(exposition, `dedup_loss_ratio{pipeline="clicks"}`) >= 0 &&
			value(exposition, `dedup_outbox_oldest_seconds{pipeline="events",shard="63"}`) == 0 && strings.Contains(exposition, `dedup_outbox_owner{owner=`) &&
			value(exposition, `dedup_parked_waiting{pipeline="rows"}`) == 0 && value(exposition, `dedup_bloom_fill{layer="sift",store="stack"}`) > 0
	})
	exposition += l.scrape(t) // a scrape reads one number after the other, some before the work
	exists := func(name string) bool {
		return strings.Contains(exposition, "\n"+name+"{") || strings.Contains(exposition, "\n"+name+" ")
	}
	for _, file := range []string{"alerts.yaml", "dashboard.json"} {
		names := named(readFile(t, deployed+file))
		if len(names) < 10 {
			t.Errorf("%s names %q alone", file, names)
		}
		for _, name := range names {
			if !exists(name) && !ofService(name) && !ofSlot(name) {
				t.Errorf("%s names %s, which the daemon does not have", file, name)
			}
		}
	}
	for _, i := range measure.Table() {
		name := i.Prometheus()
		if i.Kind == measure.Histogram {
			name += "_count"
		}
		if name == "dedup_standby_lag" || name == "dedup_keep_open" || strings.HasPrefix(name, "dedup_state_") || strings.HasPrefix(name, "dedup_windows_") || strings.HasPrefix(name, "dedup_table_") {
			continue // none of these pipelines is a Kafka transaction
		}
		if ofSlot(name) {
			continue
		}
		if !exists(name) {
			t.Errorf("the daemon does not have %s", name)
		}
	}
}

// ofSlot reports whether a metric is one of an outbox that is read through a replication slot,
// which this server cannot do. The tests of broker/outbox check it.
func ofSlot(metric string) bool { return strings.HasPrefix(metric, "dedup_outbox_slot_") }

// ofService reports whether a metric is one of semel proxy or semel serve, whose tests check it.
func ofService(metric string) bool {
	return strings.HasPrefix(metric, "dedup_proxy_") || strings.HasPrefix(metric, "dedup_serve_")
}

func TestAlertsFireOnTheirCondition(t *testing.T) {
	t.Parallel()
	promtool := servicestest.Program(t, services.Promtool)

	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml", "alerts_days_test.yaml"}} {
		command := exec.CommandContext(t.Context(), promtool, args...)
		command.Dir = deployed
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", args, err, output)
		}
	}
}

func TestEveryAlertIsTestedAndDescribed(t *testing.T) {
	t.Parallel()
	tests, alerts := readFile(t, deployed+"alerts_test.yaml")+readFile(t, deployed+"alerts_days_test.yaml"), strings.Split(readFile(t, deployed+"alerts.yaml"), "- alert: ")[1:]
	if len(alerts) < 10 {
		t.Fatalf("%d alerts", len(alerts))
	}
	for _, alert := range alerts {
		name, rest, _ := strings.Cut(alert, "\n")
		fires := regexp.MustCompile(`alertname: ` + name + `\n\s+exp_alerts:\n\s+- exp_labels`)
		if !fires.MatchString(tests) {
			t.Errorf("no test lets %s fire", name)
		}
		if !strings.Contains(rest, "summary: \"") {
			t.Errorf("%s has no summary", name)
		}
	}
}

// An alert leads to a section of the runbook that exists, and the list at the
// top of the runbook leads to the same one.
func TestEveryAlertHasItsRunbook(t *testing.T) {
	t.Parallel()
	page := readFile(t, "../../docs/runbook.md")
	module := regexp.MustCompile(`(?m)^module (\S+)$`).FindStringSubmatch(readFile(t, "../../go.mod"))[1]
	sections := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(page, -1) {
		sections[strings.ReplaceAll(strings.ToLower(found[1]), " ", "-")] = true
	}
	for _, rule := range strings.Split(readFile(t, deployed+"alerts.yaml"), "- alert: ")[1:] {
		name, _, _ := strings.Cut(rule, "\n")
		found := regexp.MustCompile(`(?m)^\s+runbook_url: (\S+)#(\S+)$`).FindStringSubmatch(rule)
		if found == nil {
			t.Errorf("%s has no runbook_url", name)
			continue
		}
		if want := "https://" + module + "/blob/main/docs/runbook.md"; found[1] != want || !sections[found[2]] {
			t.Errorf("the runbook_url of %s is %s#%s; the page is %s, with the sections %v", name, found[1], found[2], want, sections)
		}
		if row := regexp.MustCompile("(?m)^- .*`" + name + "`.*: .*\\(#" + found[2] + "\\)$"); !row.MatchString(page) {
			t.Errorf("docs/runbook.md has no line that leads from %s to #%s", name, found[2])
		}
	}
}

// The list on the page matches the table in the code.
func TestPageHasEveryMetric(t *testing.T) {
	t.Parallel()
	page := readFile(t, "../../observe/README.md")
	for _, i := range measure.Table() {
		row := fmt.Sprintf("- `%s` (%s; %s): %s\n", i.Prometheus(), i.Kind, strings.Join(i.Labels, ", "), i.Help)
		if !strings.Contains(page, row) {
			t.Errorf("observe/README.md lacks the line\n%s", row)
		}
	}
	for _, name := range named(page + readFile(t, "../../docs/observability.md")) {
		if !ofService(name) && !slices.ContainsFunc(measure.Table(), func(i measure.Instrument) bool { return i.Prometheus() == name }) {
			t.Errorf("the pages name %s, which does not exist", name)
		}
	}
}

type grafanaSource struct{ Type, UID string }

type grafanaPanel struct {
	ID         int
	Type       string
	Title      string
	Datasource *grafanaSource
	GridPos    struct{ H, W, X, Y int }
	Targets    []struct {
		RefID      string
		Expr       string
		Datasource *grafanaSource
	}
}

// An imported dashboard must find the user's data source.
func TestDashboardIsImportable(t *testing.T) {
	t.Parallel()
	text := readFile(t, deployed+"dashboard.json")
	var board struct {
		UID, Title    string
		ID            *int
		SchemaVersion int
		Panels        []grafanaPanel
		Templating    struct {
			List []struct {
				Name, Type string
				Datasource *grafanaSource
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &board); err != nil {
		t.Fatal(err)
	}
	if board.UID != "" || board.ID != nil || board.Title == "" || board.SchemaVersion == 0 {
		t.Error("the dashboard has an identity of its own, or no form")
	}
	variables := map[string]bool{}
	for _, v := range board.Templating.List {
		variables[v.Name] = true
	}
	if len(board.Templating.List) == 0 || board.Templating.List[0].Name != "datasource" || board.Templating.List[0].Type != "datasource" {
		t.Error("the first variable is not the data source")
	}
	for _, found := range regexp.MustCompile(`"uid": *"([^"]*)"`).FindAllStringSubmatch(text, -1) {
		if found[1] != "${datasource}" {
			t.Errorf("a data source is written out: %s", found[1])
		}
	}
	for _, found := range regexp.MustCompile(`\$\{?([a-z]+)\b`).FindAllStringSubmatch(text, -1) {
		if !variables[found[1]] {
			t.Errorf("the variable %s is not declared", found[1])
		}
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource == nil || len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			if target.Datasource == nil || target.Expr == "" {
				t.Errorf("panel %q has an empty query", p.Title)
			}
		}
	}
	checkQueries(t, board.Panels)
}

// checkQueries checks each query with promtool.
func checkQueries(t *testing.T, panels []grafanaPanel) {
	t.Helper()
	promtool, err := services.Find(services.Promtool)
	if err != nil {
		t.Log("queries are not checked: ", err)
		return
	}
	rules := "groups:\n- name: panels\n  rules:\n"
	for _, p := range panels {
		for i, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h").Replace(target.Expr)
			rules += fmt.Sprintf("  - record: panel_%d_%d\n    expr: %q\n", p.ID, i, expr)
		}
	}
	name := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(name, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), promtool, "check", "rules", name).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
