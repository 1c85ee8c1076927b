package suite

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/semel-dev/semel/bench/internal/lines"
)

// prepare returns a step that generates the input of n JSON lines and runs other steps.
func (e *Env) prepare(n int, steps ...func(context.Context) error) func(context.Context) error {
	return e.prepareFile(e.input(n), n, steps...)
}

// prepareFile is prepare for any input.
func (e *Env) prepareFile(input string, n int, steps ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := os.MkdirAll(e.work(), 0o755); err != nil {
			return err
		}
		if _, err := lines.File(input, inputSeed, n); err != nil {
			return err
		}
		for _, step := range steps {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// buildSemel builds cmd/semel of the main module, as `make build` does.
func (e *Env) buildSemel(ctx context.Context) error {
	return e.run(ctx, filepath.Dir(e.Root), "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", e.work("bin", "semel"), "./cmd/semel")
}

// build returns a step that builds a peer. Bento is a module of its own.
func (e *Env) build(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		return e.run(ctx, e.peer(name), "go", "build", "-o", e.work("bin", name), ".")
	}
}

// installPython creates the environment of the Python peers if their list of packages has
// changed.
func (e *Env) installPython(ctx context.Context) error {
	list := e.peer("python", "requirements.txt")
	want, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	done := e.work("venv", "requirements.txt")
	have, err := os.ReadFile(done)
	if err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	venv, err := e.fresh("venv")
	if err != nil {
		return err
	}
	if err := e.run(ctx, e.Root, "python3", "-m", "venv", venv); err != nil {
		return err
	}
	if err := e.run(ctx, e.Root, filepath.Join(venv, "bin", "pip"), "install", "--quiet", "--requirement", list); err != nil {
		return err
	}
	return os.WriteFile(done, want, 0o644)
}

// pinned names a Python peer and its version.
func (e *Env) pinned(name string) (string, error) {
	return pinnedIn(e.peer("python", "requirements.txt"), name)
}

// pinnedIn returns a module in a list of packages, with its version.
func pinnedIn(list, name string) (string, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if module, version, _ := strings.Cut(strings.TrimSpace(line), "=="); module == name {
			return module + " " + version, nil
		}
	}
	return "", fmt.Errorf("%s has no %s", list, name)
}

// run runs a command before the measurements.
func (e *Env) run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
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
