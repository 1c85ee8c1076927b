package httpidem

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The type of each problem is the address of a page of this repository, which says the
// same of it.
func TestTheTypeOfEachProblemIsAPage(t *testing.T) {
	t.Parallel()
	const repository = "https://github.com/semel-dev/semel/tree/main/"
	index, err := os.ReadFile("../docs/problems/README.md")
	if err != nil {
		t.Fatal(err)
	}
	problems := declared(t)
	if len(problems) < 10 {
		t.Fatalf("found the problems %q alone", problems)
	}
	for _, p := range problems {
		w := httptest.NewRecorder()
		(&refusal{problem: p}).write(w, nil)
		var got struct{ Type, Title string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		folder, ok := strings.CutPrefix(got.Type, repository)
		if !ok || ProblemOf(w.Result()) != p {
			t.Errorf("%s has the type %s, which is not below %s, or is read as another problem", p, got.Type, repository)
		}
		page, err := os.ReadFile("../" + folder + "/README.md")
		if err != nil {
			t.Errorf("the type %s of a problem does not exist: %v", got.Type, err)
			continue
		}
		if !strings.HasPrefix(string(page), "# "+got.Title+"\n") || !strings.Contains(string(page), "Problem `"+string(p)+"`, status "+strconv.Itoa(w.Code)+".") {
			t.Errorf("the page of %s does not begin with its title %q, or lacks its status %d", p, got.Title, w.Code)
		}
		if !strings.Contains(string(index), "- ["+string(p)+"]("+string(p)+"/README.md) ("+strconv.Itoa(w.Code)+"): "+got.Title+".\n") {
			t.Errorf("docs/problems/README.md does not list %s", p)
		}
	}
	entries, err := os.ReadDir("../docs/problems")
	if err != nil {
		t.Fatal(err)
	}
	if got := len(entries) - 1; got != len(problems) {
		t.Errorf("docs/problems has %d pages of problems, and there are %d", got, len(problems))
	}
}

// declared returns the constants of type Problem.
func declared(t *testing.T) (all []Problem) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Problem" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, Problem(text))
		}
		return true
	})
	return all
}
