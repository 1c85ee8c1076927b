package doctorcmd_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// doctorOfServe examines a section "serve" with these members.
func doctorOfServe(t *testing.T, dir, members string) programtest.Outcome {
	t.Helper()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), "stores: { keys: { embedded: { path: keys } }, other: { memory: {} } }\nserve: { store: keys, "+members+" }\n")
	return programtest.Run(t, "", "doctor", file, "serve")
}

func TestDoctorExaminesWhereServeListens(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	taken := strings.TrimPrefix(other.URL, "http://")
	socket := func(name string) string { return filepath.Join(t.TempDir(), name) }
	left := socket("left.sock")
	listener, err := net.Listen("unix", left)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	file := programtest.WriteFile(t, socket("file"), "")
	free := servicestest.FreeAddr(t)
	for members, want := range map[string]string{
		fmt.Sprintf("listen: %q", free):                         "fine     serve.listen                 " + free + " is free\n",
		fmt.Sprintf("listen: %q", taken):                        "broken   serve.listen                 another program listens at " + taken + ": GET /v1/limits gets 404 Not Found\n",
		`listen: "192.0.2.1:4196"`:                              "broken   serve.listen                 listen tcp 192.0.2.1:4196: bind: cannot assign requested address\n",
		fmt.Sprintf("socket: %q", socket("new.sock")):           "fine     serve.socket                 ",
		fmt.Sprintf("socket: %q", left):                         "fine     serve.socket                 " + left + " is left of a server that has ended",
		fmt.Sprintf("socket: %q", file):                         "broken   serve.socket                 " + file + " is not a socket\n",
		fmt.Sprintf("socket: %q", filepath.Join(left, "a/b")):   "broken   serve.socket                 ",
		fmt.Sprintf("socket: %q", socket("absent")+"/new.sock"): "create the directory, or use another path\n",
	} {
		got := doctorOfServe(t, t.TempDir(), members)
		if !strings.Contains(got.Stdout, want) || strings.Contains(want, "broken") != (got.Status == term.ExitFound) && !strings.Contains(want, "create") {
			t.Errorf("%s: %q is missing: %+v", members, want, got)
		}
		if !strings.Contains(got.Stdout, "keys (embedded)\n") || strings.Contains(got.Stdout, "other (") {
			t.Errorf("%s: want the store of serve alone: %s", members, got.Stdout)
		}
	}
}

// Doctor recognises the server that runs, even if it needs credentials that doctor lacks.
func TestDoctorRecognisesTheServerThatRuns(t *testing.T) {
	t.Parallel()
	for name, members := range map[string]string{
		"none":  "listen: %q",
		"token": "listen: %q, callers: { app: { tokens: ['" + strings.Repeat("0", 64) + "'], role: worker, scopes: ['*'] } }",
		"mtls":  "listen: %q, tls: { certificate: cert.pem, key: key.pem, client_ca: cert.pem }",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, address := programtest.CertifiedDir(t), servicestest.FreeAddr(t)
			members := fmt.Sprintf(members, address)
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), "stores: { keys: { embedded: { path: keys } }, other: { memory: {} } }\nserve: { store: keys, "+members+" }\n")
			programtest.BackgroundUntil(t, `"msg":"serve"`, programtest.NoEnv, "serve", file, "--admin", "off", "--log-format", "json")
			got := programtest.Run(t, "", "doctor", file, "serve")
			if !strings.Contains(got.Stdout, "fine     serve.listen                 semel serve answers at "+address+"\n") {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestDoctorExaminesTheCredentialsOfServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listen := fmt.Sprintf("listen: %q", servicestest.FreeAddr(t))
	caller := func(name string, days int) string {
		return fmt.Sprintf("%s: { tokens: ['%064d'], role: worker, scopes: ['payments/*', orders], expires: %s }", name, days+10, time.Now().AddDate(0, 0, days).UTC().Format(time.DateOnly))
	}
	got := doctorOfServe(t, dir, listen+", callers: { "+caller("past", -3)+", "+caller("soon", 3)+", "+caller("later", 300)+", always: { tokens: ['"+strings.Repeat("f", 64)+"'], role: viewer, scopes: ['*'] } }")
	got.Check(t, term.ExitFound, "1 store and serve: ", "1 with a warning, 1 broken")
	for _, want := range []string{
		"broken   serve.callers.past           worker of payments/*, orders, until ", "cost: its requests get 401",
		"warning  serve.callers.soon ", "fine     serve.callers.later ", "fine     serve.callers.always         viewer of *\n",
	} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing: %s", want, got.Stdout)
		}
	}
	if strings.Contains(got.Stdout, strings.Repeat("f", 64)) {
		t.Errorf("the report shows a digest: %s", got.Stdout)
	}
	if got := doctorOfServe(t, dir, listen); !strings.Contains(got.Stdout, "notice   serve.callers                none: every program of this machine is an operator") {
		t.Errorf("without callers: %+v", got)
	}
	port := servicestest.FreeAddr(t)
	got = doctorOfServe(t, dir, fmt.Sprintf("listen: %q", "0.0.0.0"+port[strings.LastIndexByte(port, ':'):]))
	if got.Status != term.ExitFound || !strings.Contains(got.Stdout, "broken   serve.callers                none, and other machines can reach 0.0.0.0:") {
		t.Errorf("open to others: %+v", got)
	}
	got = doctorOfServe(t, dir, listen+", tls: { certificate: cert.pem, key: key.pem }")
	if got.Status != term.ExitFound || !strings.Contains(got.Stdout, "broken   serve.tls ") || !strings.Contains(got.Stdout, "cost: semel serve does not start") {
		t.Errorf("without a certificate: %+v", got)
	}
	programtest.SelfSign(t, dir)
	if got := doctorOfServe(t, dir, listen+", tls: { certificate: cert.pem, key: key.pem }"); !strings.Contains(got.Stdout, "warning  serve.tls                    its certificate ends on") {
		t.Errorf("with one that ends in an hour: %+v", got)
	}
	if err := os.Remove(filepath.Join(dir, "cert.pem")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "c.yaml")
	got = programtest.Run(t, "", "doctor", file, "--json")
	if !strings.Contains(got.Stdout, `{"service":"serve","kind":"service","severity":"broken","subject":"serve.tls",`) {
		t.Errorf("%s", got.Stdout)
	}
	programtest.Run(t, "", "doctor", file, "serv").Check(t, term.ExitUsage, "has no such store or pipeline: did you mean serve?")
}
