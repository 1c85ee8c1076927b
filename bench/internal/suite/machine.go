package suite

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes this machine in one line.
func machine() (string, error) {
	cpu, err := field("/proc/cpuinfo", "model name")
	if err != nil {
		return "", err
	}
	memory, err := field("/proc/meminfo", "MemTotal")
	if err != nil {
		return "", err
	}
	var kib float64
	if _, err := fmt.Sscanf(memory, "%f kB", &kib); err != nil {
		return "", fmt.Errorf("suite: MemTotal %q: %w", memory, err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("suite: uname: %w", err)
	}
	return fmt.Sprintf("%s, %d cores, %.0f GiB, %s %s, %s", cpu, runtime.NumCPU(), kib/(1<<20),
		unix.ByteSliceToString(name.Sysname[:]), unix.ByteSliceToString(name.Release[:]), runtime.Version()), nil
}

// field returns the value of the first line "name : value" of a file in /proc.
func field(file, name string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("suite: %w", err)
	}
	for line := range bytes.Lines(data) {
		if key, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("suite: %s has no %q", file, name)
}

// linked names a peer that is part of this program by module and version.
func linked(module string) func() (string, error) {
	return func() (string, error) {
		info, ok := debug.ReadBuildInfo()
		if !ok {
			return "", errors.New("suite: the program knows nothing of its modules")
		}
		return moduleIn(info, module)
	}
}

// builtInto names a peer that is part of another program.
func builtInto(program, module string) func() (string, error) {
	return func() (string, error) {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return "", fmt.Errorf("suite: %w", err)
		}
		return moduleIn(info, module)
	}
}

func moduleIn(info *debug.BuildInfo, module string) (string, error) {
	for _, m := range info.Deps {
		if m.Path == module {
			return m.Path + " " + m.Version, nil
		}
	}
	return "", fmt.Errorf("suite: %s is not part of the program", module)
}

// standard names a peer that is written with the standard library.
func standard(what string) func() (string, error) {
	return func() (string, error) { return what + ", " + runtime.Version(), nil }
}

// limit names a limit that replaces a peer.
func limit(what string) func() (string, error) {
	return func() (string, error) { return "the limit: " + what, nil }
}
