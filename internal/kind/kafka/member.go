package kafka

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/vfs"
)

// mostMembers is the maximum number of processes of one pipeline that find a name
// by themselves on one machine.
const mostMembers = 64

// member reserves a name in a group for as long as the lock is held. Two
// processes on this machine then cannot replace each other under one name.
//
// A name set in the configuration must be free. Otherwise member takes the first
// free name: pipeline and host, or the same with a number appended. A process
// that restarts gets its previous name.
func (s *Source) member(pipeline, dir string) (name string, lock io.Closer, err error) {
	if s.Instance != "" {
		lock, err := s.lockMember(dir, s.Instance)
		if holder, ok := holderOf(err); ok {
			return "", nil, fmt.Errorf("instance %s of group %s is in use by %s: give each process an instance of its own, or leave it out: %w", s.Instance, s.Group, holder, semel.ErrInvalidRequest)
		}
		return s.Instance, lock, err
	}
	host, err := os.Hostname()
	if err != nil {
		return "", nil, fmt.Errorf("this member has no name because the host name is unknown; set instance: %w: %w", semel.ErrInvalidRequest, err)
	}
	for n := 1; n <= mostMembers; n++ {
		name = pipeline + "." + host + "." + strconv.Itoa(n)
		lock, err := s.lockMember(dir, name)
		if _, held := holderOf(err); !held {
			return name, lock, err
		}
	}
	return "", nil, fmt.Errorf("%d processes on this machine are already members of group %s; set instance: %w", mostMembers, s.Group, semel.ErrInvalidRequest)
}

// usualName returns the name of the first member on this machine.
func (s *Source) usualName(pipeline string) string {
	host, _ := os.Hostname()
	return cmp.Or(s.Instance, pipeline+"."+host+".1")
}

// lockMember locks a member name. If no directory is writable, there is no lock,
// and the name is used unchecked.
func (s *Source) lockMember(dir, name string) (io.Closer, error) {
	if dir == "" {
		return io.NopCloser(nil), nil
	}
	sum := sha256.Sum256([]byte(strings.Join(append([]string{s.Group, name}, s.Brokers...), "\x00")))
	lock, err := vfs.OS{}.Lock(filepath.Join(dir, fmt.Sprintf("%x.member", sum[:12])), "process "+strconv.Itoa(os.Getpid()))
	if _, held := holderOf(err); held {
		return nil, err
	}
	if err != nil {
		return io.NopCloser(nil), nil
	}
	return lock, nil
}

// membersDir returns the directory of the name locks. All processes of a user
// share it, whatever their working directory. It returns "" if none exists.
func membersDir() string {
	dir, err := os.UserCacheDir()
	if err == nil {
		dir = filepath.Join(dir, "semel", "members")
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return ""
	}
	return dir
}

// holderOf returns the process that holds a lock, if err says that it is taken.
func holderOf(err error) (string, bool) {
	var locked *vfs.LockedError
	if !errors.As(err, &locked) {
		return "", false
	}
	return locked.Holder, true
}

// lockedSource is a source that holds a member name while it is open.
type lockedSource struct {
	*kafka.Source
	lock io.Closer
}

// Close implements pipeline.Source.
func (s *lockedSource) Close(ctx context.Context) error {
	return errors.Join(s.Source.Close(ctx), s.lock.Close())
}
