package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/semel-dev/semel/doctor"
)

// lookPeriod is the interval between looks at the directory.
const lookPeriod = 5 * time.Second

// lookAtFiles stops the store if its files were deleted, or replaced by those of another store.
// Writes to deleted files succeed, and a restart would find no key. Other errors say nothing
// about that.
func (s *Store) lookAtFiles() {
	s.maintaining.Lock() // segments are deleted under it
	defer s.maintaining.Unlock()
	s.mu.Lock()
	var there []uint32
	for n := s.log.first; s.failed == nil && s.log.byNum(n) != nil; n++ {
		there = append(there, n)
	}
	s.mu.Unlock()
	content, err := s.fs.ReadFile(s.identityFile())
	var id identity
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.lost(s.identityFile() + " was deleted")
		return
	case err == nil && id.decode(content) == nil && id.store != s.id.store:
		s.lost(s.dir + " has another store now")
		return
	}
	names, err := s.fs.List(s.dir)
	if err != nil {
		return
	}
	if !slices.Contains(names, lockName) { // another process could lock the store
		s.lost(filepath.Join(s.dir, lockName) + " was deleted")
		return
	}
	for _, n := range there {
		if !slices.Contains(names, segmentName(n)) {
			s.lost(filepath.Join(s.dir, segmentName(n)) + " was deleted")
			return
		}
	}
}

// lost stops the store because files of it are gone.
func (s *Store) lost(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(fmt.Errorf("%s while this process used it: bring the files back from a backup, or keys that it had are processed again", what))
}

// Ready implements doctor.Readier. It returns the error of a store that has failed or is
// closed. It does not block.
func (s *Store) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usable()
}

var _ doctor.Readier = (*Store)(nil)
