package cli_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestNoOutputShowsASecret runs every verb that reads a configuration, against
// servers that refuse the password or do not exist. It looks for the password in
// all output.
func TestNoOutputShowsASecret(t *testing.T) {
	t.Parallel()
	const canary = "canary-5e1f"
	redis := servicestest.StartRedis(t, nil)
	if _, err := services.RedisDo(t.Context(), redis.Addr(), "CONFIG", "SET", "requirepass", "other"); err != nil {
		t.Fatal(err)
	}
	postgres := strings.TrimPrefix(programtest.Servers.Database(t), "postgres://postgres@")
	closed := servicestest.FreeAddr(t)
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "secret"), canary+"\n")
	host, port, _ := net.SplitHostPort(closed)
	for i, store := range []string{
		fmt.Sprintf(`redis: { url: "redis://:%s@%s" }`, canary, redis.Addr()),
		fmt.Sprintf(`redis: { url: "redis://app:${file:secret}@%s/0" }`, redis.Addr()),
		fmt.Sprintf(`redis: { cluster: [%q], username: app, password: %s }`, redis.Addr(), canary),
		fmt.Sprintf(`redis: { sentinel: { addresses: [%q], master: m, password: "${env:CANARY}" }, password: "${env:CANARY}" }`, redis.Addr()),
		fmt.Sprintf(`redis: { url: "rediss://:%s@%s", timeout: 300ms }`, canary, redis.Addr()),
		fmt.Sprintf(`redis: { url: "redis://:%s@%s", timeout: 300ms }`, canary, closed),
		fmt.Sprintf(`redis: { url: "redis://:%s@[::bad", timeout: 300ms }`, canary),
		fmt.Sprintf(`postgres: { dsn: "postgres://nobody:%s@%s" }`, canary, postgres),
		fmt.Sprintf(`postgres: { dsn: "postgres://nobody:${env:CANARY}@%s" }`, postgres),
		fmt.Sprintf(`postgres: { dsn: "postgres://postgres:%s@%s/none?sslmode=disable&sslpassword=%s" }`, canary, closed, canary),
		fmt.Sprintf(`postgres: { dsn: "host=%s port=%s user=app password='%s' dbname=x" }`, host, port, canary),
		fmt.Sprintf(`postgres: { dsn: "host=%s port=bad user=app password='%s'" }`, host, canary),
		fmt.Sprintf(`postgres: { dsn: "postgres://u:%s@%s:bad/x?sslmode=nope" }`, canary, host),
		`postgres: { dsn: "${env:CANARY}" }`,
	} {
		file := programtest.WriteFile(t, filepath.Join(dir, fmt.Sprintf("c%d.yaml", i)), "stores: { s: { "+store+" } }")
		for _, args := range []string{
			"keys ls", "keys stats --json", "keys show x", "keys import", "keys rm x --reason y", "migrate up", "migrate status", "migrate sql", "doctor", "doctor --json",
		} {
			words := append(strings.Fields(args), "--config", file)
			if strings.HasPrefix(args, "doctor") {
				words = append(strings.Fields(args), file)
			}
			env := func(name string) string { return map[string]string{"CANARY": canary}[name] }
			got := programtest.RunEnv(t, env, `{"id":"x"}`, words...)
			if said := got.Stdout + got.Stderr; strings.Contains(said, canary) {
				t.Errorf("%s with %s shows the secret: %s", args, store, said)
			}
			if works := args == "migrate sql" || strings.Contains(store, "nobody") && !strings.HasPrefix(args, "keys"); got.Status == term.ExitDone && !works {
				t.Errorf("%s with %s succeeded: %s", args, store, got.Stdout+got.Stderr)
			}
			if n := strings.Count(got.Stderr, "\n"); n > 2 {
				t.Errorf("%s with %s says %d lines: %s", args, store, n, got.Stderr)
			}
		}
	}
}
