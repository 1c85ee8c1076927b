package state_test

import (
	"testing"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/test/faultfs"
)

// TestLongValuesStayInTheLocalCopy has values of the greatest length that stays in memory, and one
// byte longer.
func TestLongValuesStayInTheLocalCopy(t *testing.T) {
	t.Parallel()
	c := opened(t, faultfs.New())
	values := state.Values{Inline: 3}
	if values.Leaves([]byte("long value")) {
		t.Error("without a copy, a value is left")
	}
	values.SetCopy(c.Disk)
	if values.Leaves([]byte("abc")) || !values.Leaves([]byte("abcd")) {
		t.Error("the limit is not three bytes")
	}
	c.add(0, "key:abcd")
	ref := values.Leave(c.places["key:abcd"], 4, []byte("abcd"))
	if got, err := values.Load([]byte("="), ref); err != nil || string(got) != "=abcd" {
		t.Errorf("%q, %v", got, err)
	}
	if values.Detach() || !values.Leaves([]byte("abcd")) {
		t.Error("a state with a value in its copy does without the copy")
	}
}

func TestStateWithoutLargeValuesNeedsNoLocalCopy(t *testing.T) {
	t.Parallel()
	values := state.Values{Inline: 3}
	values.SetCopy(opened(t, faultfs.New()).Disk)
	if !values.Detach() || values.Leaves([]byte("abcd")) {
		t.Error("the state still needs its copy")
	}
}
