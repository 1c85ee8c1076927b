package diagnose

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel"
)

func TestErrorOfAMissingMemberListsTheExistingOnes(t *testing.T) {
	t.Parallel()
	const document = `{"id":1,"order":{"total":5,"odd name":1},"list":[1],"empty":{}}`
	for rule, want := range map[string][2]string{
		".idd":              {"it has id, order, list, empty", ".id"},
		".zzz":              {"it has id, order, list, empty", ""},
		".order.totl":       {".order has total, odd name", ".order.total"},
		`.order["odd nam"]`: {".order has total, odd name", `.order["odd name"]`},
		".ordr.total":       {"it has id, order, list, empty", ".order"}, // the object of the path is missing
		".empty.id":         {".empty has no fields", ""},
		".list.id":          {".list is not an object", ""},
		".id.x":             {".id is not an object", ""},
		"header:id":         {"", ""},
		"first of .a, .b":   {"", ""},
	} {
		if has, near := Member([]byte(document), rule); has != want[0] || near != want[1] {
			t.Errorf("%s: %q, %q; want %q", rule, has, near, want)
		}
	}
	if has, near := Member([]byte(`{"id":`), ".id"); has != "" || near != "" {
		t.Errorf("a document that is cut: %q, %q", has, near)
	}
}

func TestLongListsOfFieldsAreCut(t *testing.T) {
	t.Parallel()
	var fields []string
	for i := range 12 {
		fields = append(fields, fmt.Sprint("f", i))
	}
	if got, want := Fields("it", fields), "it has f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, and 2 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Fields("it", fields[:10]); strings.Contains(got, "more") {
		t.Errorf("%q", got)
	}
}

func TestNamesThatNeedQuotesGetThemInAPath(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"id": ".id", "a_b": ".a_b", "odd name": `.["odd name"]`, "a.b": `.["a.b"]`, `a"b`: `.["a\"b"]`, "": `.[""]`} {
		if got := PathOf(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

func TestClosestNameIsFoundForATypo(t *testing.T) {
	t.Parallel()
	names := []string{"window", "store", "sink", "source", "observe"}
	for word, want := range map[string]string{
		"windwo": "window", "windo": "window", "stroe": "store", "snk": "sink", "sourcee": "source",
		"obs": "observe", // the start of one name
		"s":   "", "so": "source", "zzzzzz": "", "wxyzow": "", "": "",
	} {
		if got, ok := Nearest(word, names); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v; want %q", word, got, ok, want)
		}
	}
	if got, ok := Nearest("st", []string{"store", "status"}); ok {
		t.Errorf("the start of two names is taken for %q", got)
	}
}

// refusedByServer is an error with the code of a database.
type refusedByServer struct{}

func (refusedByServer) Error() string    { return "duplicate key value (id)=(alice)" }
func (refusedByServer) SQLState() string { return "23505" }

// answered is an error with the status of an HTTP server.
type answered struct{}

func (answered) Error() string  { return "answered 503: no alice" }
func (answered) Public() string { return "answered 503" }

func TestCauseShownToClientsHasNoMessageContent(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		fmt.Errorf("insert alice: %w", &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}): "dial tcp: connection refused",
		fmt.Errorf("insert alice: %w", syscall.ENOSPC):                                                  "no space left on device",
		fmt.Errorf("insert alice: %w", semel.ErrStoreFull):                                              semel.ErrStoreFull.Error(),
		fmt.Errorf("insert alice: %w", semel.ErrStoreUnavailable):                                       "unavailable", // it may be no store
		fmt.Errorf("insert: %w", refusedByServer{}):                                                     "SQLSTATE 23505",
		fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, answered{}):                                       "answered 503",
		fmt.Errorf("insert alice: %w", io.EOF):                                                          "",
	} {
		got := ""
		if cause := PublicCause(err); cause != nil {
			got = cause.Error()
		}
		if got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

func TestAnErrorIsShownToAllOnlyWithoutPartsOfMessages(t *testing.T) {
	t.Parallel()
	cause := errors.New("alice")
	public := &Error{Cause: "table orders is missing", Remedy: "create it", Public: true, Err: cause}
	if public.ForAll() != public || public.Error() != "table orders is missing: create it" || !errors.Is(public, cause) {
		t.Errorf("%v for all is %v", public, public.ForAll())
	}
	shown := &Error{Cause: "bad row alice", Shown: "a row is refused", Remedy: "look at it"}
	if got := shown.ForAll(); got.Error() != "a row is refused: look at it" || !got.Public || shown.Error() != "bad row alice: look at it" {
		t.Errorf("%v for all is %v", shown, got)
	}
	if got := (&Error{Cause: "bad row alice"}).ForAll(); got != nil {
		t.Errorf("for all it is %v", got)
	}
	if got := (&Error{Cause: "no remedy"}).Error(); got != "no remedy" {
		t.Errorf("%q", got)
	}
}
