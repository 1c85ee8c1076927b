package dedup

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestTheFormatPageHasEveryStoredMember: a person who repairs a store reads that page.
func TestTheFormatPageHasEveryStoredMember(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	for prefix, value := range map[string]any{outputValue: outputState{}, runValue: runState{}, positionValue: positionState{}, "": inputState{}, "length": readState{}} {
		if !strings.Contains(string(page), prefix) {
			t.Errorf("the page lacks the value %s", prefix)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeOf(value)) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("the page lacks the member %s of %s", name, prefix)
			}
		}
	}
}
