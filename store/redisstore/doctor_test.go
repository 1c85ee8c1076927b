package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// do runs one command on a server and fails the test on an error.
func do(t testing.TB, addr string, command ...string) any {
	t.Helper()
	answer, err := services.RedisDo(t.Context(), addr, command...)
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return answer
}

func examine(t testing.TB, client *Client, opts *Options) []doctor.Finding {
	t.Helper()
	findings, err := Examine(t.Context(), client, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Subject == "" || f.Found == "" || (f.Severity == doctor.Fine) != (f.Cost == "") {
			t.Errorf("a finding is not complete: %+v", f)
		}
	}
	return findings
}

// find returns the only finding about a subject.
func find(t testing.TB, findings []doctor.Finding, subject string) doctor.Finding {
	t.Helper()
	var found []doctor.Finding
	for _, f := range findings {
		if f.Subject == subject {
			found = append(found, f)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d findings about %s: %+v", len(found), subject, findings)
	}
	return found[0]
}

func TestDoctorGradesConfiguration(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	client := connect(t, server.URL(), nil)
	set := func(name, value string) []string { return []string{"CONFIG", "SET", name, value} }
	compact := Options{Compact: compactForm()}
	for _, test := range []struct {
		subject string
		before  [][]string
		opts    Options
		want    doctor.Severity
		found   string
	}{
		{"server", nil, Options{}, doctor.Fine, "standalone"},
		{"connection", nil, Options{}, doctor.Fine, "inside this machine"},
		{"role", nil, Options{}, doctor.Fine, "master"},
		{"maxmemory-policy", nil, Options{}, doctor.Fine, "noeviction"},
		{"maxmemory-policy", [][]string{set("maxmemory-policy", "allkeys-lru")}, Options{}, doctor.Broken, "allkeys-lru"},
		{"maxmemory-policy", [][]string{set("maxmemory-policy", "volatile-ttl")}, Options{}, doctor.Broken, "volatile-ttl"},
		{"maxmemory-policy", [][]string{set("maxmemory-policy", "noeviction")}, Options{}, doctor.Fine, "noeviction"},
		{"evicted_keys", nil, Options{}, doctor.Fine, "0 since"},
		{"maxmemory", nil, Options{}, doctor.Notice, "no limit"},
		{"maxmemory", [][]string{set("maxmemory", "1gb")}, Options{}, doctor.Fine, "of 1.0 GiB used"},
		{"maxmemory", [][]string{set("maxmemory", "100kb")}, Options{}, doctor.Warning, "of 0.1 MiB used"},
		{"appendonly", [][]string{set("maxmemory", "0")}, Options{Persistence: Logged}, doctor.Fine, "yes"},
		{"appendfsync", [][]string{set("appendfsync", "everysec")}, Options{}, doctor.Notice, "everysec"},
		{"appendfsync", nil, Options{Persistence: Logged}, doctor.Warning, "everysec"},
		{"appendfsync", [][]string{set("appendfsync", "everysec")}, Options{Persistence: Synced}, doctor.Broken, "everysec"},
		{"appendfsync", [][]string{set("appendfsync", "always")}, Options{Persistence: Synced}, doctor.Fine, "always"},
		{"appendfsync", [][]string{set("appendfsync", "no")}, Options{}, doctor.Warning, "no"},
		{"save", nil, Options{}, doctor.Fine, "append-only"},
		{"appendonly", [][]string{set("appendonly", "no")}, Options{}, doctor.Warning, "no"},
		{"appendonly", nil, Options{Persistence: Logged}, doctor.Broken, "no"},
		{"save", nil, Options{}, doctor.Warning, "none"},
		{"save", [][]string{set("save", "60 1")}, Options{}, doctor.Warning, "60 1"},
		{"replicas", nil, Options{}, doctor.Notice, "0 connected"},
		{"min-replicas-to-write", nil, Options{}, doctor.Fine, "without replicas"},
		{"clock", nil, Options{}, doctor.Fine, "this machine"},
		{"evalsha", nil, Options{}, doctor.Fine, "scripts, "},
		{"permissions", nil, Options{}, doctor.Fine, "all"},
		{"set-max-intset-entries", nil, compact, doctor.Fine, "512"},
		{"set-max-intset-entries", [][]string{set("set-max-intset-entries", "64")}, compact, doctor.Notice, "64"},
	} {
		for _, command := range test.before {
			do(t, server.Addr(), command...)
		}
		got := find(t, examine(t, client, &test.opts), test.subject)
		if got.Severity != test.want || !strings.Contains(got.Found, test.found) {
			t.Errorf("%s after %v, told persistence %d: %+v; want it %v, %q", test.subject, test.before, test.opts.Persistence, got, test.want, test.found)
		}
	}
}

func TestDoctorSeesThatKeysWereEvicted(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, &services.RedisOptions{Args: []string{"--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random", "--appendonly", "no"}})
	value := strings.Repeat("x", 100_000)
	for i := range 30 {
		do(t, server.Addr(), "SET", fmt.Sprint("filler", i), value)
	}
	got := find(t, examine(t, connect(t, server.URL(), nil), nil), "evicted_keys")
	if got.Severity != doctor.Broken || strings.HasPrefix(got.Found, "0 ") {
		t.Errorf("after an eviction: %+v; want it broken", got)
	}
}

func TestDoctorLooksAtReplication(t *testing.T) {
	t.Parallel()
	master := servicestest.StartRedis(t, nil)
	client := connect(t, master.URL(), nil)
	replica := servicestest.StartRedis(t, nil)
	host, port, _ := net.SplitHostPort(master.Addr())
	do(t, master.Addr(), "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	do(t, replica.Addr(), "REPLICAOF", host, port)
	eventually(t, func() bool {
		return strings.Contains(do(t, master.Addr(), "INFO", "replication").(string), "state=online")
	}, "the replica follows")

	if _, err := New(t.Context(), client, &Options{Prefix: "agreed:"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return do(t, replica.Addr(), "EXISTS", "agreed:meta") == int64(1) }, "the agreement is there")

	findings := examine(t, client, nil)
	if got := find(t, findings, "replicas"); got.Severity != doctor.Notice || got.Found != "1 connected" {
		t.Errorf("one replica: %+v", got)
	}
	if got := find(t, findings, "min-replicas-to-write"); got.Severity != doctor.Warning || got.Found != "0" {
		t.Errorf("no replica required: %+v", got)
	}
	do(t, master.Addr(), "CONFIG", "SET", "min-replicas-to-write", "1")
	eventually(t, func() bool {
		return find(t, examine(t, client, nil), "min-replicas-to-write").Severity == doctor.Fine
	}, "the required replica follows")

	do(t, master.Addr(), "CONFIG", "SET", "min-replicas-to-write", "2")
	if got := find(t, examine(t, client, nil), "min-replicas-to-write"); got.Severity != doctor.Broken {
		t.Errorf("too few replicas: %+v; want it broken", got)
	}

	follower := connect(t, replica.URL(), nil)
	if _, err := New(t.Context(), follower, &Options{Prefix: "agreed:"}); err != nil {
		t.Errorf("open where others have agreed, to have a replica examined: %v", err)
	}
	if _, err := New(t.Context(), follower, nil); !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("open an unused prefix on a replica: %v", err)
	}
	if got := find(t, examine(t, follower, nil), "role"); got.Severity != doctor.Broken || !strings.Contains(got.Found, master.Addr()) {
		t.Errorf("on a replica: %+v; want it broken", got)
	}
}

func TestDoctorLooksAtEveryMasterOfACluster(t *testing.T) {
	t.Parallel()
	cluster := servicestest.StartRedisCluster(t, nil)
	do(t, cluster.Addrs()[1], "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	client := connect(t, "redis://"+strings.Join(cluster.Addrs(), ","), nil)
	store, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	findings, err := store.Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	policies := 0
	for _, f := range findings {
		if f.Subject != "maxmemory-policy" {
			continue
		}
		policies++
		if bad := strings.Contains(f.Found, cluster.Addrs()[1]); bad != (f.Severity == doctor.Broken) {
			t.Errorf("only the second node evicts: %+v", f)
		}
	}
	if policies != 3 {
		t.Errorf("%d findings about maxmemory-policy, for three masters: %+v", policies, findings)
	}
	for _, subject := range []string{"cluster_state", "cluster_slots"} {
		if f := find(t, findings, subject); f.Severity != doctor.Fine {
			t.Errorf("a whole cluster: %+v", f)
		}
	}
	if f := find(t, findings, "cluster-require-full-coverage"); f.Severity != doctor.Notice || f.Found != "yes" {
		t.Errorf("full coverage: %+v", f)
	}

	if err := cluster.Nodes[2].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		findings, err := store.Examine(t.Context())
		if err != nil {
			return false
		}
		broken := map[string]bool{}
		for _, f := range findings {
			broken[f.Subject] = broken[f.Subject] || f.Severity == doctor.Broken
		}
		return broken["cluster_state"] && broken["cluster_slots"] && broken["node"]
	}, "the findings name the dead master and the state of the cluster")
}

// leastPrivilege returns the ACL rules of the package documentation.
func leastPrivilege(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, rules, ok := strings.Cut(line, "ACL SETUSER semel "); ok {
			return strings.Fields(strings.ReplaceAll(rules, "PASSWORD", canary))
		}
	}
	t.Fatal("the package documentation has no ACL SETUSER")
	return nil
}

func TestDocumentedACLPermissionsAreSufficientAndMinimal(t *testing.T) {
	t.Parallel()
	if rules := leastPrivilege(t); strings.Join(rules[3:], " ") != Permissions {
		t.Errorf("the package documentation has %q, the constant %q", rules, Permissions)
	}
	server := servicestest.StartRedis(t, &services.RedisOptions{Bloom: true})
	rules := leastPrivilege(t)
	do(t, server.Addr(), append([]string{"ACL", "SETUSER", "semel"}, rules...)...)
	url := "redis://semel:" + canary + "@" + server.Addr() + "/1"
	client := connect(t, url, nil)
	opts := &Options{Compact: compactForm()}
	store, err := New(t.Context(), client, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := lifeOf(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	for _, form := range []FilterForm{FilterModule, FilterBits} {
		f, err := NewFilter(t.Context(), client, &FilterOptions{Prefix: "semel:" + string(form) + ":", Form: form})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Add(t.Context(), idsFrom("s", 0, 3)), f.MayContain(t.Context(), idsFrom("s", 0, 3), make([]bool, 3))); err != nil {
			t.Error(err)
		}
	}
	findings := examine(t, client, opts)
	if f := find(t, findings, "permissions"); f.Severity != doctor.Fine {
		t.Errorf("with %v: %+v", rules, f)
	}
	for _, subject := range []string{"appendfsync", "min-replicas-to-write", "set-max-intset-entries"} {
		if f := find(t, findings, subject); f.Severity != doctor.Notice || !strings.Contains(f.Found, "not checked") {
			t.Errorf("without CONFIG: %+v", f)
		}
	}

	// Each command of the list is needed: without it the server refuses
	// something.
	for _, rule := range rules {
		command, ok := strings.CutPrefix(rule, "+")
		switch {
		case !ok, strings.HasPrefix(command, "bf."), strings.HasPrefix(command, "cluster"):
			continue
		case command == "ping": // a refused ping also counts as an answer, but it fills ACL LOG
			continue
		}
		do(t, server.Addr(), "ACL", "SETUSER", "semel", "-"+command)
		if err := everything(t.Context(), url, opts); err == nil {
			t.Errorf("nothing is refused without %s: it is not needed", command)
		}
		do(t, server.Addr(), "ACL", "SETUSER", "semel", rule)
	}
	if err := everything(t.Context(), url, opts); err != nil {
		t.Errorf("with all rules: %v", err)
	}
}

func TestDoctorNamesTheCommandsThatTheUserMayNotRun(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	look := func(rule string) doctor.Finding {
		t.Helper()
		do(t, server.Addr(), "ACL", "SETUSER", "u", "on", ">pw", "~*", "+@all", "-rpush", rule)
		return find(t, examine(t, connect(t, "redis://u:pw@"+server.Addr(), nil), nil), "permissions")
	}
	if f := look("-sadd"); f.Severity != doctor.Broken || f.Found != "the user may not run SADD, RPUSH" {
		t.Errorf("without RPUSH and SADD: %+v", f)
	}
	if f := look("+sadd"); f.Severity != doctor.Notice || f.Found != "all but RPUSH" {
		t.Errorf("without RPUSH, which is for the audit log: %+v", f)
	}
}

// everything uses all methods of the store, and returns the first error.
func everything(ctx context.Context, url string, opts *Options) error {
	client, err := NewClient(ctx, url, unhurried(nil))
	if err != nil {
		return err
	}
	defer client.Close()
	store, err := New(ctx, client, opts)
	if err != nil {
		return err
	}
	if err := lifeOf(ctx, store); err != nil {
		return err
	}
	f, err := NewFilter(ctx, client, &FilterOptions{Prefix: "semel:bits:", Form: FilterBits})
	if err != nil {
		return err
	}
	if err := errors.Join(f.Add(ctx, idsFrom("s", 0, 3)), f.MayContain(ctx, idsFrom("s", 0, 3), make([]bool, 3))); err != nil {
		return err
	}
	findings, err := store.Examine(ctx)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Subject == "permissions" && f.Severity != doctor.Fine {
			return fmt.Errorf("permissions: %s", f.Found)
		}
	}
	return nil
}
