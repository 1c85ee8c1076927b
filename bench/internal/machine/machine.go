// Package machine reads what /proc says about this machine and its processes.
package machine

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Describe describes this machine in one line.
func Describe() (string, error) {
	cpu, err := Field("/proc/cpuinfo", "model name")
	if err != nil {
		return "", err
	}
	memory, err := Field("/proc/meminfo", "MemTotal")
	if err != nil {
		return "", err
	}
	var kib float64
	if _, err := fmt.Sscanf(memory, "%f kB", &kib); err != nil {
		return "", fmt.Errorf("machine: MemTotal %q: %w", memory, err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("machine: uname: %w", err)
	}
	return fmt.Sprintf("%s, %d cores, %.0f GiB, %s %s, %s", cpu, runtime.NumCPU(), kib/(1<<20),
		unix.ByteSliceToString(name.Sysname[:]), unix.ByteSliceToString(name.Release[:]), runtime.Version()), nil
}

// Field returns the value of the first line "name : value" of a file in /proc.
func Field(file, name string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("machine: %w", err)
	}
	for line := range bytes.Lines(data) {
		if key, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("machine: %s has no %q", file, name)
}
