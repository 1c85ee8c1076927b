package logstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"
)

// lookPeriod is the interval between looks at the directory.
const lookPeriod = 5 * time.Second

// lookAtFiles stops the store if its files were deleted, or replaced by those of another store.
// Writes to deleted files succeed, and a restart would find no key. Other errors say nothing
// about that.
func (m *maintenance) lookAtFiles() {
	m.maintaining.Lock() // segments are deleted under it
	defer m.maintaining.Unlock()
	m.log.mu.Lock()
	var there []string
	for n := m.log.segments.first; m.log.failed == nil && m.log.segments.byNum(n) != nil; n++ {
		there = append(there, segmentName(n))
	}
	for _, s := range m.finder.runs.list {
		there = append(there, s.Name())
	}
	m.log.mu.Unlock()
	content, err := m.log.dir.fs.ReadFile(m.log.dir.identityFile())
	var id identity
	switch {
	case errors.Is(err, fs.ErrNotExist):
		m.lost(m.log.dir.identityFile() + " was deleted")
		return
	case err == nil && id.decode(content) == nil && id.store != m.log.dir.id.store:
		m.lost(m.log.dir.path + " has another store now")
		return
	}
	names, err := m.log.dir.fs.List(m.log.dir.path)
	if err != nil {
		return
	}
	if !slices.Contains(names, lockName) { // another process could lock the store
		m.lost(filepath.Join(m.log.dir.path, lockName) + " was deleted")
		return
	}
	for _, name := range there {
		if !slices.Contains(names, name) && !m.replaced(name) {
			m.lost(filepath.Join(m.log.dir.path, name) + " was deleted")
			return
		}
	}
}

// replaced reports whether a file is that of a run that was merged in the meantime.
func (m *maintenance) replaced(name string) bool {
	if _, _, ok := parseRunName(name); !ok {
		return false
	}
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	return !slices.ContainsFunc(m.finder.runs.list, func(s *sortedRun) bool { return s.Name() == name })
}

// lost stops the store because files of it are gone.
func (m *maintenance) lost(what string) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	m.log.fail(fmt.Errorf("%s while this process used it: bring the files back from a backup, or keys that it had are processed again", what))
}
