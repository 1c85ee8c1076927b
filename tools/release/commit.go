package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// commit describes the commit that is released.
type commit struct {
	version string // without v
	time    time.Time
}

// head returns the commit of a clean checkout. Its version is its tag, or is made
// from its time and id.
func head() (commit, error) {
	changed, err := run(nil, "git", "status", "--porcelain")
	if err != nil {
		return commit{}, err
	}
	if changed != "" {
		return commit{}, fmt.Errorf("the checkout has changes, so its files cannot be built again: commit or remove them:\n%s", changed)
	}
	line, err := run(nil, "git", "log", "-1", "--format=%ct %h", "--abbrev=12")
	if err != nil {
		return commit{}, err
	}
	seconds, id, _ := strings.Cut(line, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return commit{}, err
	}
	c := commit{time: time.Unix(unix, 0).UTC()}
	c.version = "0.0.0-" + c.time.Format("20060102150405") + "." + id
	if tag, err := run(nil, "git", "describe", "--exact-match", "--tags", "--match", "v[0-9]*"); err == nil {
		c.version = strings.TrimPrefix(tag, "v")
	}
	return c, nil
}

// run runs a command with additional variables, and returns its output without the
// last line end.
func run(env []string, name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Env = append(os.Environ(), env...)
	var problems bytes.Buffer
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, &problems)
	}
	return strings.TrimSuffix(string(output), "\n"), nil
}
