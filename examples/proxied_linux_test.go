package examples_test

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestProxiedServiceBooksEachOrderOnce(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "proxied", "-listen", "127.0.0.1:0", "serve")
	upstream, address := "http://"+service.await("listening on "), servicestest.FreeAddr(t)
	store := t.TempDir()
	proxy := func() *program {
		return start(t, nil, "semel", "proxy", "--upstream", upstream, "--listen", address, "--scope", "header:X-Api-Key", "--store", store, "--admin", "off")
	}
	client := func(ids ...string) *program {
		return start(t, nil, "proxied", append([]string{"-proxy", "http://" + address, "order"}, ids...)...)
	}
	ended := func(client *program, want string) {
		t.Helper()
		if got, err := client.end(); err != nil || strings.TrimSpace(got) != want {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
		}
	}
	// The client starts before the proxy, and repeats its request until the proxy answers.
	first := client("41", "42")
	running := proxy()
	ended(first, "41: order 41 is booked\n42: order 42 is booked")
	running.kill()
	second := client("41", "42", "43")
	proxy()
	ended(second, "41: order 41 is booked (kept answer)\n42: order 42 is booked (kept answer)\n43: order 43 is booked")
	service.kill()
	if got, _ := service.end(); got != "listening on "+strings.TrimPrefix(upstream, "http://")+"\nbooked order 41\nbooked order 42\nbooked order 43\n" {
		t.Errorf("the service printed\n%s", got)
	}
}
