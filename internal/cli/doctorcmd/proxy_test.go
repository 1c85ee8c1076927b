package doctorcmd_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestDoctorExaminesTheServicesOfAProxy(t *testing.T) {
	t.Parallel()
	var effects atomic.Int64
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodHead {
				effects.Add(1)
			}
			w.WriteHeader(status)
		}
	}
	plain, starting := httptest.NewServer(answer(404)), httptest.NewServer(answer(503))
	defer plain.Close()
	defer starting.Close()
	secure := httptest.NewUnstartedServer(answer(204))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // a handshake is refused
	secure.StartTLS()
	defer secure.Close()
	auth := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w.Header().Set("X-User", r.Header.Get("Authorization")); r.URL.Path == "/open" {
			w.Header().Set("X-User", "nobody")
		}
	}))
	defer auth.Close()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "ca.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
proxy:
  upstream: %s
  store: keys
  scope: forward:X-User
  forward_auth: %s/open
  routes:
    again: { path: /again, required: true }
    tls: { path: /tls, upstream: %s, upstream_tls: { ca: ca.pem } }
    strange: { path: /strange, upstream: %s }
    late: { path: /late, upstream: %s }
    down: { path: /down, upstream: "http://%s" }
`, plain.URL, auth.URL, secure.URL, strings.Replace(secure.URL, "127.0.0.1", "localhost", 1), starting.URL, servicestest.FreeAddr(t)))
	got := programtest.Run(t, "", "doctor", file, "proxy")
	got.Check(t, term.ExitFailed, "proxy.routes.down.upstream: ", "connection refused", "0 stores and the proxy: 3 fine, 0 to note, 2 with a warning, 1 broken")
	for _, want := range []string{
		"proxy (service)\n",
		"fine     proxy.upstream               " + plain.URL + " answers HEAD with 404",
		"fine     proxy.routes.tls.upstream    " + secure.URL + " answers HEAD with 204",
		"its certificate ends on ",
		"broken   proxy.routes.strange.upstream " + strings.Replace(secure.URL, "127.0.0.1", "localhost", 1) + ": tls: failed to verify certificate",
		"warning  proxy.routes.late.upstream   " + starting.URL + " answers HEAD with 503",
		"warning  proxy.forward_auth           it names a caller for a request without credentials",
	} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing: %s", want, got.Stdout)
		}
	}
	if strings.Contains(got.Stdout, "again") || effects.Load() != 0 {
		t.Errorf("a service was asked twice, or with %d requests that may have an effect: %s", effects.Load(), got.Stdout)
	}
	got = programtest.Run(t, "", "doctor", file, "--json")
	if !strings.Contains(got.Stdout, `{"service":"proxy","kind":"service","severity":"fine","subject":"proxy.upstream",`) || !strings.Contains(got.Stdout, `{"service":"proxy","kind":"service","error":"`) || !strings.Contains(got.Stdout, `{"store":"keys",`) {
		t.Errorf("%s", got.Stdout)
	}
	programtest.Run(t, "", "doctor", file, "prox").Check(t, term.ExitUsage, "has no such store or pipeline: did you mean proxy?")
}

func TestDoctorExaminesTheKeysAndCertificateOfAProxy(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.NotFoundHandler())
	defer service.Close()
	dir := t.TempDir()
	const section = "stores: { keys: { embedded: { path: keys } } }\nproxy: { upstream: %q, store: keys, scope: 'jwt:sub', jwt_keys: keys.json, tls: { certificate: cert.pem, key: key.pem } }\n"
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(section, service.URL))
	programtest.WriteFile(t, filepath.Join(dir, "keys.json"), `{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`)
	got := programtest.Run(t, "", "doctor", file, "proxy")
	got.Check(t, term.ExitFound, "2 broken")
	if !strings.Contains(got.Stdout, "broken   proxy.tls") || !strings.Contains(got.Stdout, "the JWK set has no public key") {
		t.Errorf("%s", got.Stdout)
	}
	programtest.SelfSign(t, dir)
	programtest.WriteFile(t, filepath.Join(dir, "keys.json"), `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`)
	got = programtest.Run(t, "", "doctor", file, "proxy")
	got.Check(t, term.ExitFound, "2 fine, 0 to note, 1 with a warning, 0 broken") // the certificate ends in an hour
	if !strings.Contains(got.Stdout, "keys.json has 1 public keys") || !strings.Contains(got.Stdout, "warning  proxy.tls                    its certificate ends on") {
		t.Errorf("%s", got.Stdout)
	}
}
