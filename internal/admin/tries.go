package admin

import (
	"crypto/sha256"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/config"
)

const (
	// FreeFailures is how many logins of a user from an address may fail before the next one has
	// to wait.
	FreeFailures = 5
	// mostFailures limits the memory of failures.
	mostFailures = 10_000
)

// Tries limits how fast credentials can be guessed, in forms and in headers alike. It counts the
// failures of each user name from each address: people behind one proxy share an address. The
// zero value is ready, and its methods are safe for concurrent use.
type Tries struct {
	// Failed is called after each failure, if it is set.
	Failed func(user, address string)

	mu sync.Mutex // guards of, and is held while credentials are compared
	of map[[sha256.Size]byte]*failure
}

// failure is what is known of the failed logins of a user from an address.
type failure struct {
	count int
	until time.Time // no login before
}

// Known is Known, unless the user has to wait at this address: it then returns how long.
func (t *Tries) Known(auth *config.Auth, user, secret, address string) (who Identity, wait time.Duration) {
	if auth == nil {
		return Identity{}, 0
	}
	key, now := sha256.Sum256([]byte(address+"\x00"+user)), time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.of[key]
	if f == nil {
		f = &failure{}
	}
	if wait := f.until.Sub(now); wait > 0 {
		return Identity{}, wait
	}
	if who = Known(auth, user, secret); who.Role != Nobody {
		delete(t.of, key)
		return who, 0
	}
	if t.of == nil || len(t.of) >= mostFailures {
		t.of = map[[sha256.Size]byte]*failure{}
	}
	t.of[key] = f
	if f.count++; f.count >= FreeFailures {
		f.until = now.Add(min(time.Second<<min(f.count-FreeFailures, 6), time.Minute))
	}
	if t.Failed != nil {
		t.Failed(user, address)
	}
	return who, 0
}

// Identify returns who sent a request, by its header Authorization, or how long that user has to
// wait before the next try.
func (t *Tries) Identify(auth *config.Auth, r *http.Request) (who Identity, wait time.Duration) {
	if user, password, ok := r.BasicAuth(); ok && user != "" {
		return t.Known(auth, user, password, Address(r))
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return t.Known(auth, "", token, Address(r))
	}
	return Identity{}, 0
}

// Address is that of the client of a request, without its port.
func Address(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// RetryAfter returns whole seconds for the header Retry-After, rounded up.
func RetryAfter(d time.Duration) string {
	return strconv.Itoa(int((d + time.Second - 1) / time.Second))
}
