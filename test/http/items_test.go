package http

import (
	"net/http"
	"testing"
	"time"

	"github.com/semel-dev/semel/httpidem/idemcheck"
)

// The embedded store has one proxy, and the others are shared by two.
func TestProxyPassesAllConformanceItemsOnEachStore(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			const lease, patience = 2500 * time.Millisecond, 9 * time.Second // more than a slow machine stands still
			flags := append(store.flags(t), "--max-body", "64KiB", "--max-response", "128KiB", "--lease", lease.String(), "--upstream-timeout", patience.String())
			targets := []string{newProxy(t, s.url, flags...).url}
			if store.name != "embedded" {
				targets = append(targets, newProxy(t, s.url, flags...).url)
			}
			report, err := idemcheck.Run(t.Context(), idemcheck.Options{
				Targets: addresses(t, targets...), Probe: addresses(t, s.url)[0],
				Caller: http.Header{"X-Api-Key": {"alice"}}, Other: http.Header{"X-Api-Key": {"bob"}},
				MaxBody: 64 << 10, MaxResponse: 128 << 10, Timeout: patience, Lease: lease,
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range report.Missed(true) {
				t.Errorf("item %d: %s: %s: %s", item.Number, item.Name, item.Result, item.Seen)
			}
			for _, item := range report.Items {
				if item.Result == idemcheck.NotApplicable {
					t.Logf("item %d: %s: %s", item.Number, item.Name, item.Seen)
				}
			}
		})
	}
}
