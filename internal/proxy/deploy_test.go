package proxy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The alerts, the dashboard and the page name the metrics of the proxy that exist, and the
// page describes all of them.
func TestDashboardsAndPagesNameOnlyProxyMetricsThatExist(t *testing.T) {
	t.Parallel()
	var metrics []string
	described := map[string]string{}
	descriptions := make(chan *prometheus.Desc, 100)
	newMetrics().Describe(descriptions)
	close(descriptions)
	for description := range descriptions {
		found := regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]+)"`).FindStringSubmatch(description.String())
		metrics = append(metrics, found[1])
		described[found[1]] = found[2]
	}
	const page = "../../observe/README.md"
	for _, file := range []string{"../../deploy/alerts.yaml", "../../deploy/dashboard.json", page} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`dedup_proxy_[a-z_]+`).FindAllString(string(text), -1)
		if len(names) < 2 {
			t.Errorf("%s names %q alone", file, names)
		}
		for _, name := range names {
			if !slices.Contains(metrics, strings.TrimSuffix(name, "_bucket")) {
				t.Errorf("%s names %s, which the proxy does not have", file, name)
			}
		}
		for name, help := range described {
			row := regexp.MustCompile("(?m)^- `" + name + "` \\([a-z]+(; [a-z, ]+)?\\): " + regexp.QuoteMeta(help) + "$")
			if file == page && !row.Match(text) {
				t.Errorf("%s does not describe %s as %q", file, name, help)
			}
		}
	}
}
