//go:build !race

package semel_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPublicAPINamesNoInternalTypes checks everything that other modules can
// import. They cannot name a type of an internal package, so no exported
// function, field or method may require one.
func TestPublicAPINamesNoInternalTypes(t *testing.T) {
	t.Parallel()
	list := exportedPackages(t)
	files := map[string]string{}
	for _, p := range list {
		files[p.ImportPath] = p.Export
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(files[path])
	})
	looked := 0
	for _, p := range list {
		if p.Export == "" || p.Name == "main" || !isOurs(p.ImportPath) || isInternal(p.ImportPath) {
			continue
		}
		pkg, err := imports.Import(p.ImportPath)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range internalTypesIn(pkg) {
			t.Error(problem)
		}
		looked++
	}
	if looked < 10 {
		t.Errorf("only %d packages were looked at", looked)
	}
}

// TestArchitectureFirstScreenOfTheRoot counts the names to which the package comment links
// before its rules: go doc prints them first, and all others in alphabetical order.
func TestArchitectureFirstScreenOfTheRoot(t *testing.T) {
	t.Parallel()
	const most = 40
	parsed, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	screen, _, found := strings.Cut(parsed.Doc.Text(), "Two rules hold")
	var names []string
	for _, link := range regexp.MustCompile(`\[(\w+)\]`).FindAllStringSubmatch(screen, -1) {
		if !slices.Contains(names, link[1]) {
			names = append(names, link[1])
		}
	}
	if !found || len(names) < most/2 || len(names) > most {
		t.Errorf("the first screen has %d names, want at most %d: %q", len(names), most, names)
	}
	if lines := strings.Count(screen, "\n"); lines > most {
		t.Errorf("the first screen has %d lines, want at most %d", lines, most)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^(type|func|const) ` + name + `\b`).MatchString(source.String()) {
			t.Errorf("the package has no %s", name)
		}
	}
}

type exportedPackage struct{ ImportPath, Name, Export string }

// exportedPackages returns the packages of the module and the packages that they
// import.
func exportedPackages(t *testing.T) (list []exportedPackage) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Name,Export", "./...")
	var complaint bytes.Buffer
	command.Stderr = &complaint
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, &complaint)
	}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p exportedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

func isOurs(path string) bool {
	return path == modulePath || strings.HasPrefix(path, modulePath+"/")
}

func isInternal(path string) bool {
	return isOurs(path) && slices.Contains(strings.Split(path, "/"), "internal")
}

// internalTypesIn returns where the exported names of a package mention types
// of internal packages.
func internalTypesIn(pkg *types.Package) (problems []string) {
	w := walker{pkg: pkg, seen: map[types.Type]bool{}}
	for _, name := range pkg.Scope().Names() {
		object := pkg.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		w.where = pkg.Path() + "." + name
		if of, ok := object.(*types.TypeName); ok && !of.IsAlias() {
			w.declared(of.Type())
			continue
		}
		w.walk(object.Type())
	}
	return w.problems
}

// walker follows types as far as a user of the package can see them.
type walker struct {
	pkg      *types.Package
	where    string
	seen     map[types.Type]bool
	problems []string
}

// declared checks the underlying type, the fields and the methods of a named type
// of the package.
func (w *walker) declared(t types.Type) {
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	w.walk(t.Underlying())
	methods := types.NewMethodSet(types.NewPointer(t))
	for i := range methods.Len() {
		if m := methods.At(i); m.Obj().Exported() {
			outer := w.where
			w.where += "." + m.Obj().Name()
			w.walk(m.Type())
			w.where = outer
		}
	}
}

func (w *walker) walk(t types.Type) {
	switch t := t.(type) {
	case *types.Named:
		w.named(t)
	case *types.Alias:
		w.walk(types.Unalias(t))
	case *types.Pointer:
		w.walk(t.Elem())
	case *types.Slice:
		w.walk(t.Elem())
	case *types.Array:
		w.walk(t.Elem())
	case *types.Chan:
		w.walk(t.Elem())
	case *types.Map:
		w.walk(t.Key())
		w.walk(t.Elem())
	case *types.Signature:
		w.tuple(t.Params())
		w.tuple(t.Results())
	case *types.Struct:
		for i := range t.NumFields() {
			if f := t.Field(i); f.Exported() {
				outer := w.where
				w.where += "." + f.Name()
				w.walk(f.Type())
				w.where = outer
			}
		}
	case *types.Interface:
		for i := range t.NumMethods() {
			if m := t.Method(i); m.Exported() {
				w.walk(m.Type())
			}
		}
	}
}

func (w *walker) tuple(t *types.Tuple) {
	for i := range t.Len() {
		w.walk(t.At(i).Type())
	}
}

func (w *walker) named(t *types.Named) {
	of := t.Obj().Pkg()
	switch {
	case of == nil: // error
		return
	case isInternal(of.Path()):
		w.problems = append(w.problems, w.where+" needs "+t.String()+", which no other module can name")
	case of == w.pkg && !t.Obj().Exported():
		w.declared(t)
	}
	for i := range t.TypeArgs().Len() {
		w.walk(t.TypeArgs().At(i))
	}
}

// TestEverySuiteRunsInAnotherModule compiles the tests of another module, to
// which the go command denies internal packages.
func TestEverySuiteRunsInAnotherModule(t *testing.T) {
	t.Parallel()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/outside")); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The other module has the same requirements as this one.
	needs := strings.Replace(read("go.mod"), "module "+modulePath+"\n", "module example.com/outside\n", 1)
	write("go.mod", fmt.Sprintf("%s\nrequire %s v0.0.0\n\nreplace %s => %s\n", needs, modulePath, modulePath, root))
	write("go.sum", read("go.sum"))
	vet := exec.CommandContext(t.Context(), "go", "vet", "-mod=mod", "./...")
	vet.Dir = dir
	vet.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off")
	if output, err := vet.CombinedOutput(); err != nil {
		t.Errorf("%v: %v\n%s", vet, err, output)
	}
	for _, suite := range exportedSuites(t) {
		if calls := read("testdata/outside/outside_test.go"); !strings.Contains(calls, suite+"(t, ") && !strings.Contains(calls, suite+"(b, ") {
			t.Errorf("testdata/outside does not run %s", suite)
		}
	}
}

// exportedSuites returns the exported functions of the suites whose names begin
// with Run, for example storetest.Run.
func exportedSuites(t *testing.T) (names []string) {
	t.Helper()
	for _, dir := range []string{"store/storetest", "broker/brokertest", "connector/connectortest"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if ok && f.Recv == nil && f.Name.IsExported() && strings.HasPrefix(f.Name.Name, "Run") {
					names = append(names, path.Base(dir)+"."+f.Name.Name)
				}
			}
		}
	}
	if len(names) < 5 {
		t.Errorf("only the suites %q were found", names)
	}
	return names
}
