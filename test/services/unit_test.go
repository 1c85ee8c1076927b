package services_test

import (
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestUnitsHaveNamesAndVariablesOfTheirOwn(t *testing.T) {
	t.Parallel()
	names, variables := map[string]bool{}, map[string]bool{}
	for _, unit := range services.Units() {
		if names[unit.Name] || variables[unit.Variable] {
			t.Errorf("%s and %s are used twice", unit.Name, unit.Variable)
		}
		names[unit.Name], variables[unit.Variable] = true, true
		if !strings.HasPrefix(unit.Variable, "SEMEL_TEST_") || unit.About == "" || len(unit.Needs) == 0 {
			t.Errorf("%+v", unit)
		}
	}
	if _, err := services.SelectUnits([]string{"redis-1.0"}); err == nil || !strings.Contains(err.Error(), `there is no "redis-1.0"`) {
		t.Errorf("%v", err)
	}
}

// TestUnitsStartAndEndWithAllTheirServers has units of one server, of several servers, and
// of a server in front of another one.
func TestUnitsStartAndEndWithAllTheirServers(t *testing.T) {
	t.Parallel()
	servicestest.Program(t, services.NATS2) // it skips the test where servers are not wanted
	units, err := services.SelectUnits([]string{services.Redis70, "redis-cluster", "redis-sentinel", services.NATS2, "standby"})
	if err != nil {
		t.Fatal(err)
	}
	running, err := services.StartUnits(t.Context(), units)
	if errors.Is(err, services.ErrNotInstalled) && os.Getenv("SEMEL_SERVICES") != "required" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, started := range running {
		for _, address := range strings.Split(started.Addr, ",") {
			if at, err := url.Parse(address); err == nil && at.Host != "" {
				address = at.Host
			}
			addresses = append(addresses, address)
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Errorf("%s: %v", started.Unit.Name, err)
				continue
			}
			_ = conn.Close() // nothing was written
		}
	}
	if len(running) != 6 || len(addresses) != 1+1+1+3+3+1 { // PostgreSQL is there for its standby
		t.Errorf("%d units with the addresses %q", len(running), addresses)
	}
	if err := services.CloseUnits(running); err != nil {
		t.Error(err)
	}
	for _, address := range addresses {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			t.Errorf("a server still listens at %s", address)
		}
	}
}
