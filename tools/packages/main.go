// Command packages prints packages of this module for the targets of the Makefile:
//
//	packages changed BRANCH   that differ from a branch, and those that import one of them
//	packages race             whose tests run with the race detector: their code, not only that
//	                          of tests, starts goroutines or takes locks, and they do not test
//	                          whole programs
//	packages plain            the others, and those of the next line
//	packages sampled          of which only some tests run with the race detector, because it
//	                          costs most there
//	packages sample           a pattern for go test -run: an eighth of their tests, others from
//	                          run to run
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	var list []string
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "changed":
		list, err = changed(args[1])
	case len(args) == 1 && (args[0] == "race" || args[0] == "plain"):
		list, err = choose(args[0] == "race")
	case len(args) == 1 && args[0] == "sampled":
		list = sampled
	case len(args) == 1 && args[0] == "sample":
		var tests []string
		tests, err = sample()
		list = []string{"^(" + strings.Join(tests, "|") + ")$"}
	default:
		fmt.Fprintln(os.Stderr, "usage: packages changed BRANCH | race | plain | sampled | sample")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(list, " "))
}

// goPackage is the part of go list's output that is read.
type goPackage struct {
	Dir, ImportPath                    string
	Imports, TestImports, XTestImports []string
}

// all lists packages. Some have no files in a build with the race detector.
func all(flags ...string) (list []goPackage, err error) {
	text, err := output("go", slices.Concat([]string{"list", "-json=Dir,ImportPath,Imports,TestImports,XTestImports"}, flags, []string{"./..."})...)
	if err != nil {
		return nil, err
	}
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
}

// changed returns the packages that differ from a branch, and packages that import one of them
// directly, also from tests. A file that is not committed counts as changed.
func changed(branch string) (list []string, err error) {
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
	packages, err := all()
	if err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	differs := map[string]bool{} // by import path
	for _, p := range packages {
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil {
			return nil, err
		}
		differs[p.ImportPath] = dirs[dir] || dirs[filepath.Join(dir, "testdata")]
	}
	for _, p := range packages {
		imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		if differs[p.ImportPath] || slices.ContainsFunc(imports, func(path string) bool { return differs[path] }) {
			list = append(list, p.ImportPath)
		}
	}
	return list, nil
}

// choose returns the packages whose tests run with the race detector, as a build with it has
// them, or the others.
func choose(wanted bool) (list []string, err error) {
	var flags []string
	if wanted {
		flags = append(flags, "-race")
	}
	packages, err := all(flags...)
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		is, err := concurrent(p.Dir)
		if err != nil {
			return nil, err
		}
		if is = is && !whole(p.ImportPath) && !slices.Contains(sampled, p.ImportPath); is == wanted {
			list = append(list, p.ImportPath)
		}
	}
	return list, nil
}

// sampled has packages whose tests need more than twice the processor time with the race
// detector, and at least 30 seconds more.
var sampled = []string{module + "broker/file", module + "broker/kafka/kafkatxn", module + "internal/dedup", module + "store/httpstore", module + "store/logstore", module + "store/tiered"}

// sample draws an eighth of the tests of each sampled package.
func sample() (drawn []string, err error) {
	for _, path := range sampled {
		tests, err := testsOf(strings.TrimPrefix(path, module))
		if err != nil {
			return nil, err
		}
		rand.Shuffle(len(tests), func(i, j int) { tests[i], tests[j] = tests[j], tests[i] })
		drawn = append(drawn, tests[:(len(tests)+7)/8]...)
	}
	return drawn, nil
}

// testsOf returns the names of the tests in a directory.
func testsOf(dir string) (tests []string, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
				tests = append(tests, f.Name.Name)
			}
		}
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("no tests in %s; run the command in the root of the module", dir)
	}
	return tests, nil
}

// whole reports whether the tests of a package run whole programs. The goroutines of a
// program are those of the packages below, each of which has tests of its own.
func whole(path string) bool {
	return slices.ContainsFunc([]string{"cmd", "examples", "internal/cli", "test"}, func(tree string) bool {
		return strings.HasPrefix(path+"/", module+tree+"/")
	})
}

const module = "github.com/semel-dev/semel/"

// concurrent reports whether a file of a directory, other than tests, has a go statement,
// calls a method Go, or imports a package for synchronisation.
func concurrent(dir string) (bool, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		for _, imported := range file.Imports {
			switch imported.Path.Value {
			case `"sync"`:
				return true, nil
			}
		}
		found := false
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				found = true
			case *ast.SelectorExpr:
				found = found || n.Sel.Name == "Go"
			}
			return !found
		})
		if found {
			return true, nil
		}
	}
	return false, nil
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
