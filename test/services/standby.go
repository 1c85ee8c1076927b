package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// StartStandby starts a standby of a running PostgreSQL server and returns when
// it follows. The standby is asynchronous unless synchronous_standby_names of
// the primary names it. pg_promote() makes it a primary. The standby starts
// with the primary's command line and settings.
func StartStandby(ctx context.Context, primary *Server, settings map[string]string) (*Server, error) {
	prepare := func(ctx context.Context, dir string) error {
		return asServer(exec.CommandContext(ctx, filepath.Join(filepath.Dir(primary.kind.program), "pg_basebackup"),
			"-d", "host=127.0.0.1 port="+strconv.Itoa(primary.Port())+" user=postgres dbname=postgres",
			"-D", dataDir(dir), "-R", "-X", "stream", "-C", "-S", "standby_"+strings.ToLower(rand.Text()[:8]), "-c", "fast", "--no-sync"))
	}
	k := postgresKind(primary.kind.name+"-standby", primary.kind.program)
	standby, err := start(ctx, k, prepare, append(slices.Clone(primary.args), settingArgs(settings)...))
	if err != nil {
		return nil, err
	}
	err = until(ctx, "a standby that follows", func(ctx context.Context) error {
		status, err := postgresDo(ctx, standby.URL(), "SELECT status FROM pg_stat_wal_receiver")
		if err == nil && status != "streaming" {
			err = fmt.Errorf("its receiver is %q", status)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	return standby, nil
}
