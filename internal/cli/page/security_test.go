package page

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/pipeline"
)

func TestEveryRouteAsksForItsRole(t *testing.T) {
	t.Parallel()
	for _, role := range []admin.Role{admin.Nobody, admin.Viewer, admin.Operator} {
		t.Run(role.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, credentials).full()
			forms := s.forms()
			for _, r := range s.page.routes() {
				path := s.example(r)
				w := s.ask(role, r.method, path, forms[r.path])
				switch refused := w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden; {
				case refused != (role < r.least):
					t.Errorf("%s %s: %d", r.method, path, w.Code)
				case r.path == "/outcome":
				case !refused && w.Code != http.StatusOK && w.Code != http.StatusSeeOther:
					t.Errorf("%s %s: %d: %s", r.method, path, w.Code, w.Body)
				case refused && (strings.Contains(w.Body.String(), "order-") || strings.Contains(w.Body.String(), "body-")):
					t.Errorf("%s %s shows a key or a message: %s", r.method, path, w.Body)
				}
				if role == admin.Viewer && (strings.Contains(w.Body.String(), "body-") || strings.Contains(w.Body.String(), `name="do"`) || strings.Contains(w.Body.String(), `name="reason" required`)) {
					t.Errorf("%s %s: a viewer sees a body or a form for a change: %s", r.method, path, w.Body)
				}
			}
			changed := s.state(hostile[0]) == semel.Done && s.state(hostile[1]) == semel.Absent
			if n, err := s.letters.Count(t.Context(), "orders"); err != nil || changed != (role == admin.Operator) || (n != int64(len(hostile))) != (role != admin.Operator) {
				t.Errorf("changed: %v, %d parked, %v", changed, n, err)
			}
		})
	}
}

// TestAViewerSeesNoErrorOfAMessage has a target whose answer, which a body may be part of, is in the
// error of a parked message, and in that of a message that is parked again.
func TestAViewerSeesNoErrorOfAMessage(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.park(pipeline.ReasonPermanent, "a", "b")
	settled := s.ask(admin.Operator, "POST", "/settle", url.Values{"pick": values(s.get("/parked"), "pick"), "do": {"retry"}, "reason": {"the target is up"}})
	queued, err := s.letters.Queued(t.Context(), "orders", 10)
	if err != nil || len(queued) != 2 || settled.Code != http.StatusSeeOther {
		t.Fatal(settled.Code, len(queued), err)
	}
	again := *queued[0]
	again.At, again.Redrives, again.Queued, again.Reason, again.Error = time.Now().Add(time.Second), again.Redrives+1, false, pipeline.ReasonAttempts, "answered again"
	if err := s.letters.Park(t.Context(), []pipeline.Parked{again}); err != nil {
		t.Fatal(err)
	}
	s.page.parkedLists.named("orders").forget()
	for path, reason := range map[string]string{
		"/parked": "permanent: ",
		"/message?pipeline=orders&id=ppermanent1":  "permanent: ",
		"/key?pipeline=orders&message=ppermanent1": "permanent: ",
		"/" + settled.Header().Get("Location"):     "attempts: ",
	} {
		path = strings.Replace(path, "/./", "/", 1)
		if w := s.ask(admin.Viewer, "GET", path, nil); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "answered ") || !strings.Contains(w.Body.String(), reason+masked) {
			t.Errorf("%s: %d: a viewer sees the error, or not that there is one: %s", path, w.Code, w.Body)
		}
		has(t, s.get(path), reason+"answered ")
	}
}

func TestWithoutCredentialsNobodySeesAKeyOrChangesAnything(t *testing.T) {
	t.Parallel()
	s := newSite(t, "").full()
	var forms map[string]url.Values
	{ // an operator, by the login link, shows what the forms would be
		cookie := s.loggedIn()
		unknown := s.ask(admin.Nobody, "GET", "/unknown", nil, cookie).Body.String()
		parked := s.ask(admin.Nobody, "GET", "/parked", nil, cookie).Body.String()
		if len(values(unknown, "pick")) != len(hostile) || len(values(parked, "pick")) != len(hostile)+1 {
			t.Fatalf("the person at the terminal sees %s%s", unknown, parked)
		}
		forms = map[string]url.Values{
			"/resolve": {"pick": values(unknown, "pick"), "do": {"done"}, "reason": {"test"}}, "/settle": {"pick": values(parked, "pick"), "do": {"skip"}, "reason": {"test"}},
			"/key": {"id": {"order-1"}}, "/message": {"pipeline": {"orders"}, "id": {"ppermanent0"}},
		}
	}
	for _, r := range s.page.routes() {
		w := s.ask(admin.Nobody, r.method, s.example(r), forms[r.path])
		if w.Code == http.StatusOK != (r.open && r.method == "GET") {
			t.Errorf("%s %s: %d", r.method, r.path, w.Code)
		}
		for _, text := range []string{"order-", "body-", "header-", "ppermanent", "alert(2)", `name="pick"`} {
			if strings.Contains(w.Body.String(), text) && text != "alert(2)" {
				t.Errorf("%s %s shows %q: %s", r.method, r.path, text, w.Body)
			}
		}
	}
	if n, err := s.letters.Count(t.Context(), ""); err != nil || n != int64(len(hostile)+1) || s.state(hostile[0]) != semel.Unknown {
		t.Errorf("%d are parked, %v, and the key is %s", n, err, s.state(hostile[0]))
	}
	has(t, s.ask(admin.Nobody, "GET", "/", nil).Body.String(), "You are not logged in", "2,906")
}

// loggedIn uses the login link and returns what adds its session to a request.
func (s *site) loggedIn() func(*http.Request) {
	s.t.Helper()
	link, err := url.Parse(s.page.LoginLink())
	if err != nil {
		s.t.Fatal(err)
	}
	if w := s.ask(admin.Nobody, "GET", link.RequestURI(), nil); w.Code != http.StatusOK || len(w.Result().Cookies()) > 0 || value(s.t, w.Body.String(), "token") != link.Query().Get("token") {
		s.t.Fatalf("a look at the link: %d: %s", w.Code, w.Body)
	}
	w := s.ask(admin.Nobody, "POST", "/login", link.Query())
	cookies := w.Result().Cookies()
	if w.Code != http.StatusSeeOther || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode {
		s.t.Fatalf("%d, %v: %s", w.Code, cookies, w.Body)
	}
	if again := s.ask(admin.Nobody, "POST", "/login", link.Query()); again.Code != http.StatusForbidden || len(again.Result().Cookies()) > 0 {
		s.t.Errorf("the link is used a second time: %d", again.Code)
	}
	return func(r *http.Request) { r.AddCookie(cookies[0]) }
}

func TestTheLoginLinkIsValidOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	cookie := s.loggedIn() // checks the second use
	if w := s.ask(admin.Nobody, "GET", "/key", nil, cookie); w.Code != http.StatusOK {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if w := s.ask(admin.Nobody, "POST", "/logout", nil, cookie); w.Code != http.StatusSeeOther {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if w := s.ask(admin.Nobody, "GET", "/key", nil, cookie); w.Code != http.StatusUnauthorized {
		t.Errorf("after the logout: %d: %s", w.Code, w.Body)
	}
	ask := url.Values{"ask": {"1"}}
	if w := s.ask(admin.Nobody, "POST", "/login", ask); w.Code != http.StatusForbidden {
		t.Errorf("without a terminal: %d: %s", w.Code, w.Body)
	}
	var told []string
	s.page.Tell = func(link string) { told = append(told, link) }
	has(t, s.ask(admin.Nobody, "GET", "/login", nil).Body.String(), "Print a new link there")
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		if w := s.ask(admin.Nobody, "POST", "/login", ask); w.Code != want || len(told) != 1 || strings.Contains(w.Body.String(), "token=") {
			t.Errorf("question %d: %d, %v: %s", i, w.Code, told, w.Body)
		}
	}
	_, token, _ := strings.Cut(told[0], "token=")
	if s.page.sessions.useLink(token, time.Now().Add(linkFor)) {
		t.Error("the link has no end")
	}
	if w := s.ask(admin.Nobody, "POST", "/login", url.Values{"token": {token}}); w.Code != http.StatusSeeOther {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	s := newSessions(&net.TCPAddr{})
	now := time.Now()
	secret := s.start(admin.Identity{Name: "ops", Role: admin.Operator}, now)
	for at := time.Duration(0); at < sessionFor; at += sessionIdle / 2 {
		if s.of(secret, now.Add(at), true).Role != admin.Operator {
			t.Fatalf("the session ended after %s", at)
		}
	}
	if s.of(secret, now.Add(sessionFor+1), true).Role != admin.Nobody {
		t.Error("the session has no end")
	}
	secret = s.start(admin.Identity{Name: "ops", Role: admin.Operator}, now)
	if s.of(secret, now.Add(sessionIdle+1), true).Role != admin.Nobody {
		t.Error("an idle session does not end")
	}
	secret = s.start(admin.Identity{Name: "ops", Role: admin.Operator}, now)
	if s.of(secret, now.Add(sessionIdle/2), false).Role != admin.Operator || s.of(secret, now.Add(sessionIdle+1), false).Role != admin.Nobody {
		t.Error("the script keeps an idle session open")
	}
	for range mostSessions + 10 {
		s.start(admin.Identity{Name: "ops"}, now)
	}
	if len(s.open) != mostSessions {
		t.Errorf("%d sessions", len(s.open))
	}
}

// withinTheWait calls ask with addresses, until it took less than a second from the last login that
// failed: that is how long the next one has to wait. It then checks the answers.
func withinTheWait(t *testing.T, ask func(address string) (failed time.Time, check func())) {
	t.Helper()
	for i := 100; i < 200; i++ {
		if failed, check := ask(fmt.Sprint("192.0.2.", i)); time.Since(failed) < time.Second {
			check()
			return
		}
	}
	t.Fatal("no answers came within a second")
}

func TestFailedLoginsHaveToWait(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	wrong := url.Values{"user": {"ops"}, "password": {"x"}}
	withinTheWait(t, func(address string) (failed time.Time, check func()) {
		from := func(r *http.Request) { r.RemoteAddr = address + ":1" }
		for i := range admin.FreeFailures {
			failed = time.Now()
			if w := s.ask(admin.Nobody, "POST", "/login", wrong, from); w.Code != http.StatusUnauthorized {
				t.Fatalf("login %d: %d", i, w.Code)
			}
		}
		w := s.ask(admin.Nobody, "POST", "/login", url.Values{"user": {"ops"}, "password": {canary + "-pw"}}, from)
		return failed, func() {
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
				t.Errorf("%d, %v", w.Code, w.Header())
			}
		}
	})
	w := s.ask(admin.Nobody, "POST", "/login", url.Values{"user": {"ops"}, "password": {canary + "-pw"}, "next": {"//evil.example/x"}}, func(r *http.Request) { r.RemoteAddr = "192.0.2.7:1" })
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != home {
		t.Errorf("%d to %q", w.Code, w.Header().Get("Location"))
	}
	w = s.ask(admin.Nobody, "POST", "/login", url.Values{"password": {canary + "-token"}, "next": {"parked?reason=unknown"}}, func(r *http.Request) { r.RemoteAddr = "192.0.2.7:1" })
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "parked?reason=unknown" {
		t.Errorf("%d to %q", w.Code, w.Header().Get("Location"))
	}
}

func TestForeignHostsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials).full()
	forms := s.forms()
	for _, r := range s.page.routes() {
		for _, host := range []string{"evil.example", "127.0.0.1.evil.example", "127.evil.example:4195"} {
			w := s.ask(admin.Operator, r.method, s.example(r), forms[r.path], func(r *http.Request) {
				r.Host = host
				r.Header.Set("Origin", "http://"+host) // as after DNS rebinding
			})
			if w.Code != http.StatusMisdirectedRequest {
				t.Errorf("%s %s for %s: %d", r.method, r.path, host, w.Code)
			}
		}
	}
	if s.state(hostile[0]) != semel.Unknown {
		t.Error("a request for a foreign host changed a key")
	}
}

func TestPostsOfOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials).full()
	forms := s.forms()
	for name, change := range map[string]func(*http.Request){
		"cross-site":     func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"same-site":      func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"another origin": func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"another port":   func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:80") },
		"no origin":      func(r *http.Request) { r.Header.Set("Origin", "null") },
	} {
		for path, form := range forms {
			if w := s.ask(admin.Operator, "POST", path, form, change); w.Code != http.StatusForbidden {
				t.Errorf("%s, POST %s: %d", name, path, w.Code)
			}
		}
	}
	for path, form := range forms { // a GET changes nothing, whatever it has
		s.ask(admin.Operator, "GET", path+"?"+form.Encode(), nil)
	}
	if n, err := s.letters.Count(t.Context(), ""); err != nil || n != int64(len(hostile)+1) || s.state(hostile[0]) != semel.Unknown || s.state(hostile[1]) != semel.Unknown {
		t.Errorf("%d are parked, %v, and the key is %s", n, err, s.state(hostile[0]))
	}
}

// everything returns all pages of a full site: those of GET, and those that follow a form.
func (s *site) everything() map[string]*httptest.ResponseRecorder {
	all := map[string]*httptest.ResponseRecorder{}
	for path, form := range s.forms() {
		w := s.ask(admin.Operator, "POST", path, form)
		if w.Code == http.StatusSeeOther {
			w = s.ask(admin.Operator, "GET", "/"+strings.TrimPrefix(w.Header().Get("Location"), "./"), nil)
		}
		all["POST "+path] = w
	}
	for _, path := range s.paths() {
		all["GET "+path] = s.ask(admin.Operator, "GET", path, nil)
	}
	for _, id := range hostile {
		all["key "+id] = s.ask(admin.Operator, "POST", "/key", url.Values{"id": {id}, "caller": {}, "pipeline": {"orders"}})
		all["reason "+id] = s.ask(admin.Operator, "POST", "/change", url.Values{"store": {id}, "ref": {"d." + s.digest("order-1")}, "expect": {id}, "do": {id}, "reason": {id}})
		all["message "+id] = s.ask(admin.Operator, "POST", "/key", url.Values{"headers": {id}, "message": {id}, "pipeline": {"hooks"}})
		all["pipeline "+id] = s.ask(admin.Operator, "POST", "/key", url.Values{"id": {"a"}, "pipeline": {id}})
	}
	return all
}

func TestHostileTextsStayText(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials).full()
	element := regexp.MustCompile(`<([a-zA-Z!/][^\s>]*)([^>]*)>`)
	handler := regexp.MustCompile(`(?i)\s(on[a-z]+|style|srcdoc)=`)
	for name, w := range s.everything() {
		page := w.Body.String()
		for _, tag := range element.FindAllStringSubmatch(page, -1) {
			quoted := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(tag[2], `""`)
			switch {
			case slices.Contains([]string{"img", "i", "b", "u", "s", "iframe", "object", "embed", "base"}, tag[1]), tag[1] == "script" && !strings.HasPrefix(tag[2], ` type="module" src="page.`):
				t.Errorf("%s has the element %s", name, tag[0])
			case handler.MatchString(quoted):
				t.Errorf("%s has an attribute that runs code, or a style: %s", name, tag[0])
			case strings.Contains(tag[2], `="javascript:`):
				if !strings.Contains(tag[0], `name="id" value="javascript:`) && !strings.Contains(tag[0], `<input`) {
					t.Errorf("%s has a link that runs code: %s", name, tag[0])
				}
			}
		}
		echoed := strings.HasPrefix(name, "key ") || strings.HasPrefix(name, "message ") // in the form of the person who sent it
		if strings.ContainsAny(page, "\x1b\u202e\x00") && !echoed {
			t.Errorf("%s has a character that controls the text", name)
		}
		if got := w.Header().Get("Content-Security-Policy"); got != policy || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s has the headers %v", name, w.Header())
		}
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s: %s", name, page)
		}
	}
	has(t, s.get("/unknown"), "&lt;script&gt;alert(1)&lt;/script&gt;")
	has(t, s.get("/"), "&lt;script&gt;alert(1)&lt;/script&gt;")
}

func TestNoPageShowsASecret(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials).full()
	check := func() {
		for name, w := range s.everything() {
			if strings.Contains(w.Body.String(), canary) || strings.Contains(fmt.Sprint(w.Header()), canary) {
				t.Errorf("%s shows a secret: %s", name, w.Body)
			}
		}
	}
	check()
}

func TestLinksAreRelativeAndWorkBelowAPrefix(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials+`, public_url: "https://tools.example/ops/semel"`).full()
	link := regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
	proxied := func(r *http.Request) { // by a proxy that keeps the path
		r.Host = "tools.example"
		r.URL.Path = "/ops/semel" + r.URL.Path
		r.Header.Set("Origin", "https://tools.example")
	}
	for _, path := range s.paths() {
		w := s.ask(admin.Operator, "GET", path, nil, proxied)
		for _, found := range link.FindAllStringSubmatch(w.Body.String(), -1) {
			if strings.HasPrefix(found[1], "/") || strings.Contains(found[1], "://") || strings.HasPrefix(found[1], "..") {
				t.Errorf("%s links to %s", path, found[1])
			}
		}
		if direct := s.ask(admin.Operator, "GET", path, nil); direct.Code != w.Code {
			t.Errorf("%s: %d below the prefix, and %d without", path, w.Code, direct.Code)
		}
	}
	w := s.ask(admin.Nobody, "GET", "/ops/semel", nil)
	if w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != "/ops/semel/" {
		t.Errorf("%d to %s", w.Code, w.Header().Get("Location"))
	}
	w = s.ask(admin.Nobody, "POST", "/login", s.forms()["/login"], proxied)
	if cookies := w.Result().Cookies(); w.Code != http.StatusSeeOther || len(cookies) != 1 || !cookies[0].Secure || !strings.HasPrefix(cookies[0].Name, "__Host-") || cookies[0].Path != "/" {
		t.Errorf("%d, %v", w.Code, cookies)
	}
	if got := s.page.LoginLink(); !strings.HasPrefix(got, "https://tools.example/ops/semel/login?token=") {
		t.Error(got)
	}
	w = s.ask(admin.Nobody, "POST", "/login", s.forms()["/login"]) // at its own address, which has no TLS
	if cookies := w.Result().Cookies(); len(cookies) != 1 || cookies[0].Secure || strings.HasPrefix(cookies[0].Name, "__Host-") {
		t.Errorf("%d, %v", w.Code, cookies)
	}
	s.page.Apart = true
	if got := s.page.URL(); got != "http://127.0.0.1:4195/" {
		t.Error(got)
	}
}
