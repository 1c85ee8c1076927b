package servicestest_test

import (
	"net"
	"testing"

	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestPoolTakesTheServersItIsGiven(t *testing.T) {
	for name, value := range map[string]string{
		"SEMEL_REDIS": "valkey-9", "SEMEL_TEST_REDIS": "redis://other:1", "SEMEL_TEST_VALKEY_9": "redis://given:1",
		"SEMEL_POSTGRES": "", "SEMEL_TEST_POSTGRES": "postgres://given:2",
		"SEMEL_TEST_KAFKA": "given:3",
	} {
		t.Setenv(name, value)
	}
	var servers servicestest.Pool
	if url := servers.Redis(t); url != "redis://given:1" {
		t.Errorf("Redis at %s", url)
	}
	if url := servers.Postgres(t); url != "postgres://given:2" {
		t.Errorf("PostgreSQL at %s", url)
	}
	if addr := servers.Kafka(t); addr != "given:3" {
		t.Errorf("Kafka at %s", addr)
	}
}

func TestPrefixesDiffer(t *testing.T) {
	t.Parallel()
	if one, other := servicestest.Prefix(), servicestest.Prefix(); one == other {
		t.Errorf("twice %s", one)
	}
	if one, other := servicestest.Topic(), servicestest.Topic(); one == other {
		t.Errorf("twice %s", one)
	}
}

func TestFreeAddressesDiffer(t *testing.T) {
	t.Parallel()
	given := map[string]bool{}
	for range 300 {
		addr := servicestest.FreeAddr(t)
		if given[addr] {
			t.Fatalf("%s is given twice", addr)
		}
		given[addr] = true
	}
}

func TestNobodyListensAtAFreeAddress(t *testing.T) {
	t.Parallel()
	addr := servicestest.FreeAddr(t)
	if conn, err := net.Dial("tcp", addr); err == nil {
		t.Errorf("%v listens", conn.RemoteAddr())
	}
	for range 2 {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
