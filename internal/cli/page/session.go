package page

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/admin"
)

const (
	sessionFor  = 12 * time.Hour
	sessionIdle = time.Hour
	// mostSessions limits the memory of sessions. The oldest one ends.
	mostSessions = 1000
	// freeFailures is how many logins of an address may fail before it has to wait.
	freeFailures = 5
	// mostAddresses limits the memory of failures.
	mostAddresses = 10_000
)

// sessions are the people who are logged in.
type sessions struct {
	cookie string // its name, without the prefix for TLS

	mu       sync.Mutex // guards the fields below
	open     map[[32]byte]*session
	link     string // the secret of the login link, or "" once it was used
	failures map[string]*failure
}

type session struct {
	who           admin.Identity
	started, used time.Time
}

// failure is what is known of the failed logins from an address.
type failure struct {
	count int
	until time.Time // no login before
}

// newSessions returns the sessions of a server. Browsers send the cookies of a host to all its
// ports, so the name of the cookie has a part for the address.
func newSessions(at net.Addr) *sessions {
	sum := sha256.Sum256([]byte(at.String()))
	return &sessions{cookie: "semel-" + hex.EncodeToString(sum[:4]), open: map[[32]byte]*session{}, failures: map[string]*failure{}}
}

// useLink ends the login link, and reports whether its secret is this one.
func (s *sessions) useLink(secret string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == "" || sha256.Sum256([]byte(secret)) != sha256.Sum256([]byte(s.link)) {
		return false
	}
	s.link = ""
	return true
}

// of returns the identity of a session.
func (s *sessions) of(secret string, now time.Time) admin.Identity {
	id := sha256.Sum256([]byte(secret))
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.open[id]
	switch {
	case found == nil:
		return admin.Identity{}
	case now.Sub(found.started) > sessionFor || now.Sub(found.used) > sessionIdle:
		delete(s.open, id)
		return admin.Identity{}
	}
	found.used = now
	return found.who
}

// start starts a session and returns its secret.
func (s *sessions) start(who admin.Identity, now time.Time) string {
	secret := rand.Text() + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.open) >= mostSessions {
		var oldest [32]byte
		var since time.Time
		for id, of := range s.open {
			if since.IsZero() || of.used.Before(since) {
				oldest, since = id, of.used
			}
		}
		delete(s.open, oldest)
	}
	s.open[sha256.Sum256([]byte(secret))] = &session{who, now, now}
	return secret
}

// end ends a session.
func (s *sessions) end(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, sha256.Sum256([]byte(secret)))
}

// wait returns how long an address has to wait before its next login.
func (s *sessions) wait(address string, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failures[address]; f != nil {
		return f.until.Sub(now)
	}
	return 0
}

// tried notes the outcome of a login.
func (s *sessions) tried(address string, failed bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !failed {
		delete(s.failures, address)
		return
	}
	if len(s.failures) >= mostAddresses {
		clear(s.failures)
	}
	f := s.failures[address]
	if f == nil {
		f = &failure{}
		s.failures[address] = f
	}
	if f.count++; f.count >= freeFailures {
		f.until = now.Add(min(time.Second<<min(f.count-freeFailures, 6), time.Minute))
	}
}
