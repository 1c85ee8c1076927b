//go:build !race

package semel_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostHomes is in how many files the methods of one type may stand. mostBackward is how
// many percent of the references between the files of a package may run against the best
// order of its files. Read in that order, a file needs few that come later.
const mostHomes, mostBackward = 3, 20

// spread are types whose methods stand in more files, and tangled packages whose files
// refer to each other more. A figure must fall when it can: the test fails if it is too high.
var (
	spread = map[string]exception{
		"store/redisstore.Store":      {12, aVerb},
		"store/pgstore.Store":         {9, aVerb},
		"store/pgstore.session":       {5, aVerb},
		"store/tiered.Store":          {8, aVerb},
		"store/memstore.Store":        {7, aVerb},
		"store/memstore.shard":        {4, aVerb},
		"store/storetest.env":         {11, "a file holds the cases of one part of the contract"},
		"..Guard":                     {6, "a file holds one way to call a guard"},
		"httpidem/idemcheck.check":    {6, "a file holds the items of one chapter"},
		"broker/brokertest.sourceEnv": {4, "a file holds the cases of one promise"},

		"broker/kafka/kafkatxn/internal/window.State": {4, operators},

		"broker/outbox.Source":               {5, "listening, leases and shards are not types yet"},
		"broker/file.Source":                 {5, "the finding of files is not a type yet"},
		"pipeline.Runner":                    {4, "one step of a message's path in a file"},
		"key.Finder":                         {5, "one form of a rule in a file"},
		"key.parser":                         {4, "one form of a rule in a file"},
		"store/pgstore.MigrateOptions":       {4, "one step of a migration in a file"},
		"internal/schema.Value":              {7, "one use of a value in a file: text, tree, names, secrets, reference"},
		"internal/config.Linter":             {6, "one group of findings in a file"},
		"internal/config.File":               {5, program},
		"internal/config.Pipeline":           {5, program},
		"internal/cli/term.App":              {5, program},
		"internal/dedup.Run":                 {5, "one step of a run in a file"},
		"internal/app.daemon":                {8, program},
		"internal/cli/keyscmd.keysFlags":     {5, "one verb in a file"},
		"internal/cli/parkedcmd.parkedFlags": {5, "one verb in a file"},
		"internal/kind/kafka.Client":         {6, "one optional interface of a kind in a file"},
		"internal/kind/kafka.Source":         {6, "one optional interface of a kind in a file"},
		"internal/kind/kafka.Sink":           {4, "one optional interface of a kind in a file"},
	}
	tangled = map[string]exception{
		"broker/outbox":          {21, "listening, leases and shards are not types yet"},
		"broker/file":            {22, "the finding of files is not a type yet"},
		"internal/schema":        {28, program},
		"internal/proxy":         {25, program},
		"internal/kind/postgres": {26, program},
		"internal/cli/keyscmd":   {26, program},
		"internal/cli/parkedcmd": {27, program},
	}
)

// Reasons of several exceptions.
const (
	aVerb     = "a file holds one verb of the store contract"
	operators = "one step in the life of a window in a file: adding, emitting, storing, values on disk"
	program   = "the packages of the program are not divided by what they answer for yet"
)

// exception is a figure that is allowed, and why.
type exception struct {
	figure int
	why    string
}

// checkedPackage is a package with its types.
type checkedPackage struct {
	place string
	set   *token.FileSet
	files []*ast.File
	info  *types.Info
}

// name returns the name of the file that holds a position.
func (p *checkedPackage) name(at token.Pos) string {
	return filepath.Base(p.set.Position(at).Filename)
}

// checkProject checks the types of the project's packages, without their tests. Packages
// that they import are read as the compiler left them.
func checkProject(t *testing.T) []*checkedPackage {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Export,Standard", "./...")
	var complaint bytes.Buffer
	command.Stderr = &complaint
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, &complaint)
	}
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		Standard                bool
	}
	exports := map[string]string{}
	var own []listed
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.ImportPath == modulePath || strings.HasPrefix(p.ImportPath, modulePath+"/") {
			own = append(own, p)
		}
	}
	set := token.NewFileSet()
	compiled := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var project []*checkedPackage
	for _, of := range own {
		p := &checkedPackage{place: place(of.ImportPath), set: set, info: &types.Info{Uses: map[*ast.Ident]types.Object{}}}
		for _, name := range of.GoFiles {
			file, err := parser.ParseFile(set, filepath.Join(of.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			p.files = append(p.files, file)
		}
		if _, err := (&types.Config{Importer: compiled}).Check(of.ImportPath, set, p.files, p.info); err != nil {
			t.Fatal(err)
		}
		project = append(project, p)
	}
	return project
}

// homes returns the files in which the methods of each type stand.
func (p *checkedPackage) homes() map[string][]string {
	homes := map[string][]string{}
	for _, file := range p.files {
		for _, declared := range file.Decls {
			fn, ok := declared.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			of := fn.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if generic, ok := of.(*ast.IndexExpr); ok {
				of = generic.X
			}
			if generic, ok := of.(*ast.IndexListExpr); ok {
				of = generic.X
			}
			name := of.(*ast.Ident).Name
			if home := p.name(file.Pos()); !slices.Contains(homes[name], home) {
				homes[name] = append(homes[name], home)
			}
		}
	}
	return homes
}

// references returns which files of a package use what other files of it declare.
func (p *checkedPackage) references() map[[2]string]bool {
	found := map[[2]string]bool{}
	for used, object := range p.info.Uses {
		if object.Pkg() == nil || !object.Pos().IsValid() {
			continue
		}
		from, to := p.set.Position(used.Pos()).Filename, p.set.Position(object.Pos()).Filename
		if from != to && filepath.Dir(from) == filepath.Dir(to) {
			found[[2]string{filepath.Base(from), filepath.Base(to)}] = true
		}
	}
	return found
}

// backward returns how many references run against the best order of the files that it
// finds: it moves each file to its best place until no move helps.
func backward(references map[[2]string]bool) int {
	var files []string
	for r := range references {
		files = append(files, r[0], r[1])
	}
	slices.Sort(files)
	files = slices.Compact(files)
	// after is the number of backward references between a file and one that comes later.
	after := func(file, later string) int {
		n := 0
		if references[[2]string{later, file}] {
			n = 1
		}
		return n
	}
	for moved := true; moved; {
		moved = false
		for _, file := range slices.Clone(files) {
			at := slices.Index(files, file)
			rest := slices.Delete(slices.Clone(files), at, at+1)
			cost := 0
			for _, other := range rest {
				cost += after(file, other)
			}
			costs := []int{cost} // of each place
			for _, other := range rest {
				cost += after(other, file) - after(file, other)
				costs = append(costs, cost)
			}
			if best := slices.Index(costs, slices.Min(costs)); costs[best] < costs[at] {
				files, moved = slices.Insert(rest, best, file), true
			}
		}
	}
	n := 0
	for i, file := range files {
		for _, later := range files[i+1:] {
			n += after(file, later)
		}
	}
	return n
}

func TestArchitecturePackagesCanBeReadInOrder(t *testing.T) {
	t.Parallel()
	for _, p := range checkProject(t) {
		for name, files := range p.homes() {
			at := p.place + "." + name
			allowed, listed := spread[at]
			switch n := len(files); {
			case n > max(mostHomes, allowed.figure):
				t.Errorf("the methods of %s stand in %d files: %s: let a part of it become a type", at, n, strings.Join(files, ", "))
			case listed && n < allowed.figure:
				t.Errorf("the methods of %s stand in %d files only: lower its figure, %d", at, n, allowed.figure)
			}
		}
		references := p.references()
		n := backward(references)
		allowed, listed := tangled[p.place]
		switch percent := 100 * n / max(1, len(references)); {
		case n > 2 && percent > max(mostBackward, allowed.figure):
			t.Errorf("%d of %d references between the files of %s run against their best order: let what two files need from each other stand in one", n, len(references), p.place)
		case listed && percent < allowed.figure:
			t.Errorf("%d %% of the references between the files of %s run against their best order: lower its figure, %d", percent, p.place, allowed.figure)
		}
	}
}
