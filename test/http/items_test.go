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
	// A time-out of at most 10 s and a lease that a slow machine keeps are checked one by one.
	for name, c := range map[string]struct{ patience, lease time.Duration }{
		"a time-out": {9 * time.Second, 5 * time.Minute}, "a lease": {time.Minute, 6 * time.Second},
	} {
		for _, store := range stores {
			t.Run(store.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := newService(t)
				flags := append(store.flags(t), "--max-body", "64KiB", "--max-response", "128KiB", "--lease", c.lease.String(), "--upstream-timeout", c.patience.String())
				targets := []string{newProxy(t, s.url, flags...).url}
				if store.name != "embedded" {
					targets = append(targets, newProxy(t, s.url, flags...).url)
				}
				report, err := idemcheck.Run(t.Context(), idemcheck.Options{
					Targets: addresses(t, targets...), Probe: addresses(t, s.url)[0],
					Caller: http.Header{"X-Api-Key": {"alice"}}, Other: http.Header{"X-Api-Key": {"bob"}},
					MaxBody: 64 << 10, MaxResponse: 128 << 10, Timeout: c.patience, Lease: c.lease,
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
}
