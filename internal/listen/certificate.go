// Package listen has what the HTTP servers of the program share: certificates that may change,
// and the hosts of a server.
package listen

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/config"
)

// lookAgain is how often the files of a certificate are looked at, at most.
const lookAgain = time.Second

// Certificates returns the configuration of a listener, or nil without TLS. If the files
// change, the next connection gets the new certificate. If the new files cannot be used,
// the old certificate stays, and the log says so.
func Certificates(t *config.ServerTLS, log *slog.Logger) (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	c := &reloaded{files: t, log: log, looked: time.Now()}
	c.stamp = c.stamps()
	var err error
	if c.current, err = c.load(); err != nil {
		return nil, err
	}
	outer := c.current.Clone()
	outer.GetConfigForClient = c.get
	return outer, nil
}

// reloaded is the configuration of a listener whose files may change.
type reloaded struct {
	files *config.ServerTLS
	log   *slog.Logger

	mu      sync.Mutex // guards the fields below
	current *tls.Config
	stamp   string // of the files when they were looked at
	looked  time.Time
}

func (c *reloaded) get(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookAgain {
		return c.current, nil
	}
	c.looked = time.Now()
	if stamp := c.stamps(); stamp != c.stamp {
		c.stamp = stamp
		next, err := c.load()
		if err != nil {
			c.log.Error("the new certificate cannot be used: the old one stays", "certificate", c.files.Certificate, "error", err)
			return c.current, nil
		}
		c.current = next
		c.log.Info("the certificate was read again", "certificate", c.files.Certificate)
	}
	return c.current, nil
}

func (c *reloaded) load() (*tls.Config, error) {
	secure, err := c.files.Config()
	if err != nil {
		return nil, err
	}
	secure.NextProtos = []string{"h2", "http/1.1"}
	return secure, nil
}

// stamps returns a text that changes with the files. A file that is missing has none.
func (c *reloaded) stamps() (all string) {
	for _, name := range []string{c.files.Certificate, c.files.Key, c.files.ClientCA} {
		if info, err := os.Stat(name); err == nil {
			all += fmt.Sprintf("%d %d\n", info.ModTime().UnixNano(), info.Size())
		}
	}
	return all
}
