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
	linkFor     = 15 * time.Minute
	// mostSessions limits the memory of sessions. The oldest one ends.
	mostSessions = 1000
)

// sessions are the people who are logged in.
type sessions struct {
	cookie string // its name, without the prefix for TLS

	mu      sync.Mutex // guards the fields below
	open    map[[32]byte]*session
	link    string // the secret of the login link, or "" once it was used
	linkEnd time.Time
}

type session struct {
	who           admin.Identity
	started, used time.Time
}

// newSessions returns the sessions of a server. Browsers send the cookies of a host to all its
// ports, so the name of the cookie has a part for the address.
func newSessions(at net.Addr) *sessions {
	sum := sha256.Sum256([]byte(at.String()))
	return &sessions{cookie: "semel-" + hex.EncodeToString(sum[:4]), open: map[[32]byte]*session{}}
}

// newLink returns the secret of a new login link, or "" if the last one is still valid.
func (s *sessions) newLink(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != "" && now.Before(s.linkEnd) {
		return ""
	}
	s.link, s.linkEnd = rand.Text(), now.Add(linkFor)
	return s.link
}

// useLink ends the login link, and reports whether its secret is this one.
func (s *sessions) useLink(secret string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == "" || !now.Before(s.linkEnd) || sha256.Sum256([]byte(secret)) != sha256.Sum256([]byte(s.link)) {
		return false
	}
	s.link = ""
	return true
}

// of returns the identity of a session. used: this request is a person's, and not one of the script.
func (s *sessions) of(secret string, now time.Time, used bool) admin.Identity {
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
	if used {
		found.used = now
	}
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
