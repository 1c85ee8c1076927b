package proxycmd_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/test/programtest"
)

// The unit of the proxy is as that of pipelines. It is ready when its store is open.
func TestProxyNotifiesSystemd(t *testing.T) {
	t.Parallel()
	for keys, want := range map[string]string{
		"embedded: { path: keys }":                            "READY=1 STOPPING=1",
		`postgres: { dsn: "postgres://app:x@127.0.0.1:1/x" }`: "STOPPING=1",
	} {
		socket, config := programtest.NotifiedConfig(t, keys, "true")
		programtest.WriteFile(t, config, "stores: { keys: { "+keys+" } }\nproxy: { listen: '127.0.0.1:0', upstream: 'http://127.0.0.1:1', store: keys, scope: global }\n")
		systemd := programtest.ListenForNotify(t, socket)
		program := programtest.RunNotified(t, socket, "proxy", config)
		systemd.Until(t, "three signs of life", func() bool {
			return systemd.Alive >= 3 && (want == "STOPPING=1" || slices.Contains(systemd.Got, "READY=1"))
		})
		if err := program.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		systemd.Until(t, "end", func() bool { return slices.Contains(systemd.Got, "STOPPING=1") })
		if err := program.Wait(); err != nil || strings.Join(systemd.Got, " ") != want {
			t.Errorf("%s: %q, want %q: %v", keys, systemd.Got, want, err)
		}
	}
}
