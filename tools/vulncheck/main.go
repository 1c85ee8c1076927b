// Vulncheck runs govulncheck on all packages of this module. It fails if the code
// calls a function with a known vulnerability that accepted.txt does not list. If the
// vulnerability database cannot be reached, it says so, and fails if the module builds
// with a dependency or version that modules.txt does not list.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"
	// database is the default of govulncheck. GOVULNDB replaces it.
	database = "https://vuln.go.dev"
	// patience is how long the database may take to answer.
	patience = 15 * time.Second
)

//go:embed accepted.txt
var acceptedList string

func main() {
	update := flag.Bool("update", false, "write "+listFile)
	flag.Parse()
	if err := check(context.Background(), *update); err != nil {
		fmt.Fprintln(os.Stderr, "govulncheck:", err)
		os.Exit(1)
	}
}

func check(ctx context.Context, update bool) error {
	from := os.Getenv("GOVULNDB")
	if from == "" {
		from = database
	}
	modules, err := built(ctx)
	if err != nil {
		return err
	}
	missing := reach(ctx, from)
	if missing != nil {
		fmt.Printf("govulncheck: NOT CHECKED: the vulnerability database cannot be reached: %v\n", missing)
	} else if err := govulncheckOf(ctx, from); err != nil {
		return err
	}
	switch {
	case update:
		return os.WriteFile(listFile, []byte(listText(modules, missing == nil, time.Now())), 0o644)
	case missing != nil:
		return compare(modules, moduleList)
	}
	return nil
}

func govulncheckOf(ctx context.Context, from string) error {
	command := exec.CommandContext(ctx, "go", "run", govulncheck, "-db", from, "-format", "json", "./...")
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return err
	}
	return judge(os.Stdout, bytes.NewReader(output), accepted(acceptedList))
}

// reach asks a database on a server for its index.
func reach(ctx context.Context, from string) error {
	if !strings.HasPrefix(from, "http") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, from+"/index/modules.json", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // a HEAD has no body
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", from, answer.Status)
	}
	return nil
}

// accepted returns the ids in a list: one a line, followed by the reason.
func accepted(list string) []string {
	var ids []string
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "#" {
			ids = append(ids, fields[0])
		}
	}
	return ids
}

// finding is a finding of govulncheck. The first frame of its trace is the
// vulnerable code. It has a function if the module calls it.
type finding struct {
	OSV          string `json:"osv"`
	FixedVersion string `json:"fixed_version"`
	Trace        []struct{ Module, Version, Package, Function string }
}

// judge prints the vulnerabilities that the code calls, and fails if one of them is
// not accepted.
func judge(w io.Writer, output io.Reader, accepted []string) error {
	var called, refused []string
	stream := json.NewDecoder(output)
	for {
		var message struct{ Finding *finding }
		if err := stream.Decode(&message); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read its output: %w", err)
		}
		f := message.Finding
		if f == nil || len(f.Trace) == 0 || f.Trace[0].Function == "" || slices.Contains(called, f.OSV) {
			continue
		}
		called = append(called, f.OSV)
		at := f.Trace[0]
		fixed := "there is no fixed version"
		if f.FixedVersion != "" {
			fixed = "fixed in " + f.FixedVersion
		}
		text := fmt.Sprintf("%s: %s %s calls %s.%s, %s: https://pkg.go.dev/vuln/%s", f.OSV, at.Module, at.Version, at.Package, at.Function, fixed, f.OSV)
		if slices.Contains(accepted, f.OSV) {
			text += " (accepted)"
		} else {
			refused = append(refused, f.OSV)
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	for _, id := range accepted {
		if !slices.Contains(called, id) {
			if _, err := fmt.Fprintf(w, "%s is accepted and not found: remove it from tools/vulncheck/accepted.txt\n", id); err != nil {
				return err
			}
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("the code calls vulnerable functions (%s): update the modules, or accept the findings in tools/vulncheck/accepted.txt with a reason", strings.Join(refused, ", "))
	}
	_, err := fmt.Fprintf(w, "govulncheck: %d known vulnerabilities are called, all accepted\n", len(called))
	return err
}
