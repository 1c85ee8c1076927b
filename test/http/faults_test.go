package http

import (
	"context"
	"net/http"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// asked is a request whose answer the service holds back.
type asked struct {
	got *reply
	err error
}

// hold sends a request that the service holds back until Open, and waits until it takes
// effect.
func hold(ctx context.Context, t *testing.T, s *service, proxy, id string) <-chan asked {
	t.Helper()
	answer := make(chan asked, 1)
	go func() {
		got, err := post(ctx, proxy, id, "gate")
		for err == nil && got.problem == "upstream-down" { // it stood still, and sent nothing
			got, err = post(ctx, proxy, id, "gate")
		}
		answer <- asked{got, err}
	}()
	s.reached(t, id, "1")
	return answer
}

// A proxy stands still for longer than its lease, and another one gets the repetition.
// Whatever the first one does when it continues, the record is that of the second.
func TestAPausedProxyLosesItsKey(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		if store.name == "embedded" {
			continue // one process has it
		}
		for _, policy := range []string{"hold", "retry"} {
			t.Run(store.name+"/"+policy, func(t *testing.T) {
				t.Parallel()
				s := newService(t)
				flags := append(store.flags(t), "--on-lease-expired", policy)
				one, two := newProxy(t, s.url, flags...), newProxy(t, s.url, append(flags, steady...)...)
				first := hold(t.Context(), t, s, one.url, "order")
				one.signal(t, syscall.SIGSTOP)
				if policy == "hold" {
					got, err := settled(t.Context(), two.url, "order", "gate")
					if err != nil || got.status != http.StatusConflict || got.problem != "outcome-unknown" {
						t.Errorf("the second proxy answers %+v, %v", got, err)
					}
					s.Open("order")
					one.signal(t, syscall.SIGCONT)
					<-first
					s.ran(t, "order", 1)
				} else {
					second := make(chan asked, 1)
					go func() {
						got, err := settled(t.Context(), two.url, "order", "gate")
						second <- asked{got, err}
					}()
					s.reached(t, "order", "2")
					s.Open("order")
					if got := <-second; got.err != nil || got.got.body != "run 2" {
						t.Errorf("the second proxy answers %+v, %v", got.got, got.err)
					}
					one.signal(t, syscall.SIGCONT)
					<-first
				}
				before := s.Runs("order")
				for _, p := range []*proxy{one, two} {
					got, err := settled(t.Context(), p.url, "order", "gate")
					if err != nil || policy == "retry" && got.body != "run 2" {
						t.Errorf("after the first proxy continued, a repetition gets %+v, %v", got, err)
					}
				}
				s.ran(t, "order", before)
			})
		}
	}
}

// onServers calls test with the flags of stores whose server the test may stop.
func onServers(t *testing.T, test func(t *testing.T, server *services.Server, flags []string)) {
	for name, start := range map[string]func(*testing.T) (*services.Server, []string){
		"redis": func(t *testing.T) (*services.Server, []string) {
			server := servicestest.StartRedis(t, nil)
			return server, inFile(t, `redis: { url: "`+server.URL()+`" }`)
		},
		"postgres": func(t *testing.T) (*services.Server, []string) {
			server := servicestest.StartPostgres(t, nil)
			flags := inFile(t, `postgres: { dsn: "`+servicestest.NewDatabase(t, server.URL())+`" }`)
			semel(t, "migrate", "up", "--config", flags[1])
			return server, flags
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, flags := start(t)
			test(t, server, flags)
		})
	}
}

func TestRequestDoesNotRunWhenTheStoreIsDownAtTheClaim(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *services.Server, flags []string) {
		s := newService(t)
		p := newProxy(t, s.url, flags...)
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		got, err := post(t.Context(), p.url, "order", "")
		if err != nil || got.status != http.StatusServiceUnavailable || got.problem != "store-unavailable" || got.header.Get("Retry-After") == "" {
			t.Errorf("without its store the proxy answers %+v, %v", got, err)
		}
		s.ran(t, "order", 0)
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := settled(t.Context(), p.url, "order", ""); err != nil || got.body != "run 1" {
			t.Errorf("with its store again the proxy answers %+v, %v", got, err)
		}
		s.ran(t, "order", 1)
	})
}

func TestKeyStaysClaimedWhenTheStoreIsDownAtTheCompletion(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *services.Server, flags []string) {
		s := newService(t)
		p := newProxy(t, s.url, append(flags, "--lease", "20s")...) // it lasts until the client has its answer
		first := hold(t.Context(), t, s, p.url, "order")
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		s.Open("order")
		if got := <-first; got.err != nil || got.got.body != "run 1" {
			t.Errorf("the client whose request took effect got %+v, %v", got.got, got.err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := settled(t.Context(), p.url, "order", "gate")
		if err != nil || got.problem != "outcome-unknown" && got.body != "run 1" {
			t.Errorf("a repetition gets %+v, %v", got, err)
		}
		s.ran(t, "order", 1)
	})
}

// A store is stopped while a request comes. It executes the claim when it continues, long
// after the answer said that nothing has run: the key must be free again.
func TestKeyIsNotLeftClaimedWhenTheStoreStopsAtTheClaim(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *services.Server, flags []string) {
		s := newService(t)
		p := newProxy(t, s.url, append(flags, "--lease", "30s")...)
		if got, err := post(t.Context(), p.url, "before", ""); err != nil || got.body != "run 1" {
			t.Fatalf("the proxy answers %+v, %v", got, err)
		}
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		got, err := post(t.Context(), p.url, "order", "")
		if err != nil || got.status != http.StatusServiceUnavailable || got.problem != "store-unavailable" {
			t.Errorf("without its store the proxy answers %+v, %v", got, err)
		}
		s.ran(t, "order", 0)
		if err := server.Continue(); err != nil {
			t.Fatal(err)
		}
		if got, err := settled(t.Context(), p.url, "order", ""); err != nil || got.body != "run 1" {
			t.Errorf("with its store again the proxy answers %+v, %v", got, err)
		}
		s.ran(t, "order", 1)
	})
}
