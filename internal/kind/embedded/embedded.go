// Package embedded is the kind of store that keeps keys in a directory.
package embedded

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/logstore"
)

// Store is a durable store in a directory.
type Store struct {
	config.StoreBase
	Path string
	// Fsync is always, interval or never.
	Fsync      string
	KeepIDs    config.IDs
	KeepOrigin bool
}

// NewStore returns an empty Store.
func NewStore() config.StoreKind { return &Store{} }

// At returns the store in a directory, with the default settings.
func At(dir string) config.StoreKind { return &Store{Path: dir, Fsync: "always"} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "embedded" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Durable keys in a directory, for one process at a time.",
		Fields: []schema.Field{
			schema.PathField("path", &s.Path, "Directory of the store.").Need(),
			schema.ChoiceField("fsync", &s.Fsync, "When answers are durable on the disk: `always` syncs before the answer, `interval` every 100ms, `never` leaves it to the system.",
				"always", "interval", "never").Or("always"),
			config.KeepIDsField(&s.KeepIDs),
			config.KeepOriginField(&s.KeepOrigin, "true", "A key then takes about 50 bytes and that text more on the disk: 116 bytes instead of 20 for lines of a file."),
		},
	}
}

// About implements config.StoreKind.
func (s *Store) About() config.StoreAbout {
	var gaps []string
	if s.Fsync != "always" {
		gaps = []string{"a power loss forgets the keys since the last sync (fsync: " + s.Fsync + ")"}
	}
	return config.StoreAbout{
		Gaps:      gaps,
		Directory: s.Path, Exists: s.exists, Place: s.Path, PlaceName: "directory", ClaimsEnd: true, Origins: s.KeepOrigin,
		Exceptions: []string{"a loss of the disk loses the keys"},
	}
}

// Lint implements config.StoreKind.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if !l.Decides(of) {
		return
	}
	path := l.At("store")
	if s.Fsync != "always" {
		l.Add(doctor.Warning, config.Repeat, path, of.Name+" has fsync: "+s.Fsync, "a power loss forgets the keys since the last sync, and repeated messages have their effect again", "write fsync: always")
	}
	if _, shared := l.Pipeline.Source.(config.Topics); shared {
		l.Notice(path, of.Name+" is embedded", "only one process can open it: a second member of the group would have its own keys, and not know those of a partition that it takes over", "nothing for one process; use redis or postgres for several")
	}
}

// Open implements config.StoreKind.
func (s *Store) Open(_ context.Context, env *config.StoreEnv) (semel.Store, error) {
	fsync, err := logstore.ParseFsync(s.Fsync)
	if err != nil {
		return nil, err
	}
	store, err := logstore.Open(s.Path, &logstore.Options{Fsync: fsync, KeepIDs: env.KeepIDs || env.File.KeepsIDs(s, s.KeepIDs), DurableClaims: env.KeepClaims, MaxResult: config.MaxResult})
	if err != nil {
		return nil, err
	}
	env.OnClose(store.Close)
	return store, nil
}

// Examine implements config.Kind. It opens the directory, which checks every
// record in it. It does not create a missing store.
func (s *Store) Examine(_ context.Context, x *config.Examination) {
	switch s.Fsync {
	case "always":
		x.Note(doctor.Fine, "fsync", s.Fsync, "", "")
	default:
		x.Note(doctor.Warning, "fsync", s.Fsync, "a power loss forgets the keys since the last sync, and repeated messages have their effect again", "write fsync: always")
	}
	x.Fail("", s.examine(x))
}

func (s *Store) examine(x *config.Examination) error {
	exists, err := s.exists()
	switch {
	case err != nil:
		return err
	case !exists:
		if err := logstore.CheckNew(s.Path); err != nil {
			return err
		}
		x.Note(doctor.Notice, "directory", s.Path+" holds no store yet", "", "nothing: the first run creates it")
		return nil
	}
	x.Space("directory", s.Path)
	store, err := logstore.Open(s.Path, &logstore.Options{KeepIDs: x.File.KeepsIDs(s, s.KeepIDs), MaxResult: config.MaxResult})
	if holder, ok := diagnose.Holder(err); ok {
		x.Note(doctor.Notice, "directory", "in use by "+holder, "", "nothing: doctor did not open it")
		return nil
	}
	if err != nil {
		return err
	}
	x.Note(doctor.Fine, "directory", "every record of "+s.Path+" was read", "", "")
	return store.Close()
}

// exists reports whether the directory holds a store. It looks for the file that
// store/logstore/FORMAT.md names.
func (s *Store) exists() (bool, error) {
	_, err := os.Stat(filepath.Join(s.Path, "STORE"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
