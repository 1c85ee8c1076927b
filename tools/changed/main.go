// Command changed prints the packages of this module that differ from a branch, and those that
// import one of them directly, also from tests. `make quick` tests these.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: changed BRANCH")
		os.Exit(2)
	}
	list, err := changed(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "changed:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(list, " "))
}

// changed returns import paths. A file that is not committed counts as changed.
func changed(branch string) ([]string, error) {
	base, err := output("git", "merge-base", branch, "HEAD")
	if err != nil {
		return nil, err
	}
	differ, err := output("git", "diff", "--name-only", "--no-renames", strings.TrimSpace(string(base)))
	if err != nil {
		return nil, err
	}
	fresh, err := output("git", "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	dirs := map[string]bool{}
	for name := range strings.Lines(string(differ) + string(fresh)) {
		dirs[filepath.Dir(strings.TrimSpace(name))] = true
	}
	text, err := output("go", "list", "-json=Dir,ImportPath,Imports,TestImports,XTestImports", "./...")
	if err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	type goPackage struct {
		Dir, ImportPath                    string
		Imports, TestImports, XTestImports []string
	}
	var all []goPackage
	own := map[string]bool{} // import paths
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, err
		}
		// Data of tests belongs to the package above it.
		own[p.ImportPath] = dirs[dir] || dirs[filepath.Join(dir, "testdata")]
	}
	var list []string
	for _, p := range all {
		imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		if own[p.ImportPath] || slices.ContainsFunc(imports, func(path string) bool { return own[path] }) {
			list = append(list, p.ImportPath)
		}
	}
	return list, nil
}

func output(name string, args ...string) ([]byte, error) {
	command := exec.Command(name, args...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out, nil
}
