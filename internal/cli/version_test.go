package cli

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionNamesRevisionAndToolchain(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc123"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}},
	}
	if text := versionOf(info).String(); !strings.HasPrefix(text, "semel v1.2.3 (abc123, modified) go") {
		t.Errorf("version: %q", text)
	}
	if text := versionOf(nil).String(); !strings.HasPrefix(text, "semel (devel) go") {
		t.Errorf("version without build information: %q", text)
	}
}
