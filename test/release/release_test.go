// Package release checks what a release and deploy/ consist of. Plain go test checks
// the program of this platform and the files in deploy/. With -full, as in make
// release-check, it builds the release of the last commit twice, compares the two,
// and installs the package for Debian.
package release

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"
)

var full = flag.Bool("full", false, "build and install a whole release")

// largest is the maximum size of the program in bytes. If it grows by 15 MB, the linker
// keeps methods that nothing calls, because a new import calls methods by name, as
// text/template does: go build -ldflags=-dumpdep shows it as <ReflectMethod>.
const largest = 44_000_000

func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	output, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, output)
	}
	return string(output)
}

func content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// program builds the program as make build does.
func program(t *testing.T) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^build:.*\n\t(.* -ldflags=")(.*)(" -o )semel`).FindStringSubmatch(content(t, "../../Makefile"))
	if found == nil || found[1] != `CGO_ENABLED=0 $(GO) build -trimpath -ldflags="` {
		t.Fatalf("make build does not build a static program: %q", found)
	}
	name := filepath.Join(t.TempDir(), "semel")
	command(t, "../..", []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags="+found[2], "-o", name, "./cmd/semel")
	return name
}

func small(t *testing.T, name string) {
	t.Helper()
	if info, err := os.Stat(name); err != nil || info.Size() > largest || info.Size() < 1<<20 {
		t.Errorf("%s: %v, %v: at most %d bytes are allowed", name, info, err, largest)
	}
}

func TestProgramIsStaticAndItsDeploymentFilesAreValid(t *testing.T) {
	t.Parallel()
	name := program(t)
	small(t, name)
	if runtime.GOOS == "linux" {
		file, err := elf.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if libraries, err := file.ImportedLibraries(); len(libraries) > 0 || err != nil || file.Section(".interp") != nil || file.Section(".symtab") != nil {
			t.Errorf("it is not static and stripped: %q, %v", libraries, err)
		}
	}
	if got := command(t, "", nil, name, "version"); !strings.HasPrefix(got, "semel ") {
		t.Errorf("%s", got)
	}
	t.Run("systemd unit", func(t *testing.T) { unit(t, name, "semel", "run", "semel.yaml") })
	t.Run("systemd unit of the proxy", func(t *testing.T) { unit(t, name, "semel-proxy", "proxy", "proxy.yaml") })
	t.Run("Kubernetes", func(t *testing.T) {
		kubernetes(t, name, "kubernetes.yaml", "v1 ConfigMap", "apps/v1 Deployment", "networking.k8s.io/v1 NetworkPolicy")
	})
	t.Run("Kubernetes, the proxy", func(t *testing.T) {
		kubernetes(t, name, "kubernetes-proxy.yaml", "v1 ConfigMap", "v1 Service", "apps/v1 Deployment", "networking.k8s.io/v1 NetworkPolicy")
	})
	t.Run("compose", func(t *testing.T) { compose(t, name, "../../deploy", "semel", "proxy") })
	t.Run("compose of pipelines", func(t *testing.T) {
		compose(t, name, "../../examples/pipelines", "kafka-to-postgres", "webhook-to-kafka")
	})
}

// unit checks the systemd unit with this program in its place. The unit runs a verb with a
// configuration.
func unit(t *testing.T, program, name, verb, configuration string) {
	t.Helper()
	text := content(t, "../../deploy/"+name+".service")
	if want := "\nExecStart=/usr/bin/semel " + verb + " /etc/semel/" + configuration + "\n"; !strings.Contains(text, want) || !strings.Contains(text, "\nConditionPathExists=/etc/semel/"+configuration+"\n") || !strings.Contains(text, "man:semel-"+verb+"(1)\n") {
		t.Errorf("the unit does not have %q", want)
	}
	starts(t, program, []string{verb, "/etc/semel/" + configuration})
	crashes(t, program, regexp.MustCompile(`(?m)^Environment=(.*)$`).FindStringSubmatch(text))
	file := filepath.Join(t.TempDir(), name+".service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "/usr/bin/semel", program)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("NOT CHECKED: ", err)
		return
	}
	if got := command(t, "", nil, "systemd-analyze", "verify", "--man=no", file); strings.Contains(got, name+".service") {
		t.Error(got)
	}
}

// crashes checks that a crash of the program ends it by a signal. The exit status of Go
// programs that crash is 2, for which the unit permits no restart.
func crashes(t *testing.T, program string, environment []string) {
	t.Helper()
	if len(environment) != 2 {
		t.Fatalf("no Environment in the unit: %q", environment)
	}
	c := exec.CommandContext(t.Context(), program, "dedup", "--key", "line")
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), environment[1]) // for a core file
	stdin, err1 := c.StdinPipe()
	stdout, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stdin, "x\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, 2)); err != nil { // it runs
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if c.ProcessState.ExitCode() != -1 {
		t.Errorf("with %s, a crash ends with %v, want a signal", environment[1], c.ProcessState)
	}
}

// lint runs semel lint on a configuration.
func lint(t *testing.T, program, configuration string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "semel.yaml")
	if err := os.WriteFile(name, []byte(configuration), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "", []string{"DATABASE_URL=postgres://h/x", "KAFKA_BROKERS=h:9092", "WEBHOOK_TOKEN=t"}, program, "lint", name)
}

// starts checks that the program knows the verb and flags with which a container
// starts, up to the configuration, which is not there.
func starts(t *testing.T, program string, args []string) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err == nil || strings.Count(string(output), "\n") != 1 || !regexp.MustCompile(`/etc/semel/\S+\.yaml: there is no such file`).Match(output) {
		t.Errorf("%q: %v %s", args, err, output)
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

type container struct {
	Args      []string
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Ports     []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
}

// kubernetes checks a file of deploy/ that has objects of these kinds.
func kubernetes(t *testing.T, program, name string, want ...string) {
	t.Helper()
	name = filepath.Join("../../deploy", name)
	decoder := yaml.NewDecoder(strings.NewReader(content(t, name)))
	var kinds []string
	for {
		var object struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   struct{ Name string }
			Data       map[string]string
			Spec       struct {
				Template struct {
					Spec struct {
						InitContainers []container `yaml:"initContainers"`
						Containers     []container
						Grace          int `yaml:"terminationGracePeriodSeconds"`
					}
				}
			}
		}
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		kinds = append(kinds, object.APIVersion+" "+object.Kind)
		switch object.Kind {
		case "ConfigMap":
			for _, configuration := range object.Data {
				lint(t, program, configuration)
			}
		case "Deployment":
			pod := object.Spec.Template.Spec
			if len(pod.Containers) != 1 || len(pod.InitContainers) != 1 || pod.Grace <= 25 {
				t.Fatalf("%+v", pod)
			}
			c := pod.Containers[0]
			if c.Liveness.HTTPGet.Path != "/livez" || c.Readiness.HTTPGet.Path != "/readyz" || c.Liveness.HTTPGet.Port != "admin" || len(c.Ports) == 0 || c.Ports[0].Name != "admin" || c.Ports[0].ContainerPort != 4195 {
				t.Errorf("probes: %+v", c)
			}
			starts(t, program, c.Args)
			starts(t, program, pod.InitContainers[0].Args)
		}
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("%s has %q, want %q", name, kinds, want)
	}
	if !*full {
		return
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Log("kubeconform: NOT CHECKED: the schemas come with pip: ", err)
		return
	}
	schemas := kubernetesSchemas(t)
	accepts(t, content(t, name), "replicas: 2", "replicas: two", func(file string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "go", "run", "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0", "-strict",
			"-schema-location", schemas+"/{{.ResourceKind}}{{.KindSuffix}}.json", file)
	})
}

// kubernetesSchemas returns a directory with the JSON schemas of the Kubernetes API. The
// package index of Python has them.
func kubernetesSchemas(t *testing.T) string {
	t.Helper()
	const version, sum = "1.37.0", "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
	dir := t.TempDir()
	needs := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(needs, []byte("kubernetes-validate=="+version+" --hash=sha256:"+sum+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, dir, nil, "python3", "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "-r", needs)
	wheel, err := zip.OpenReader(filepath.Join(dir, "kubernetes_validate-"+version+"-py3-none-any.whl"))
	if err != nil {
		t.Fatal(err)
	}
	defer wheel.Close()
	// Their references are to addresses that do not exist.
	local := strings.NewReplacer(`"$id":`, `"x-id":`, `"/api/_definitions.json`, `"_definitions.json`)
	for _, file := range wheel.File {
		if !strings.Contains(file.Name, "/v"+version+"-local-strict/") {
			continue
		}
		text, err := fs.ReadFile(wheel, file.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file.Name)), []byte(local.Replace(string(text))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// accepts checks that a command accepts a file with this text, and refuses it when a part
// of the text is replaced by a wrong one.
func accepts(t *testing.T, text, part, wrong string, check func(file string) *exec.Cmd) {
	t.Helper()
	for _, text := range []string{text, strings.Replace(text, part, wrong, 1)} {
		file := filepath.Join(t.TempDir(), "file.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		output, err := check(file).CombinedOutput()
		if (err == nil) == strings.Contains(text, wrong) {
			t.Errorf("%v\n%s%s", err, output, text)
		}
	}
}

// compose checks the compose.yaml of a directory. The named services run configurations of
// their names.
func compose(t *testing.T, program, dir string, running ...string) {
	t.Helper()
	for _, name := range running {
		lint(t, program, content(t, filepath.Join(dir, name+".yaml")))
	}
	var file struct {
		Services map[string]struct {
			Build       struct{ Context, Dockerfile string }
			Command     []string
			Healthcheck struct{ Test []string }
			DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		}
	}
	if err := yaml.Unmarshal([]byte(content(t, filepath.Join(dir, "compose.yaml"))), &file); err != nil {
		t.Fatal(err)
	}
	for name, s := range file.Services {
		if s.Build.Dockerfile != "" {
			content(t, filepath.Join(dir, s.Build.Context, s.Build.Dockerfile))
			starts(t, program, s.Command)
		}
		for other, how := range s.DependsOn {
			if on, ok := file.Services[other]; !ok || how.Condition == "service_healthy" && on.Healthcheck.Test == nil {
				t.Errorf("%s depends on %s, which is not there or has no health check", name, other)
			}
		}
	}
	for _, name := range running {
		s := file.Services[name]
		if test := s.Healthcheck.Test; len(test) == 0 || test[len(test)-1] != "http://127.0.0.1:4195/readyz" {
			t.Errorf("the health check of %s is %q", name, test)
		}
		if len(s.Command) < 2 || s.Command[1] != "/etc/semel/"+name+".yaml" {
			t.Errorf("%s runs %q", name, s.Command)
		}
	}
	if !*full {
		return
	}
	tool := t.TempDir() // a module of its own
	if err := os.CopyFS(tool, os.DirFS("testdata/compose")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mod", "init", "compose"}, {"get", "github.com/compose-spec/compose-go/v2@v2.16.2"}, {"build", "-o", "compose", "."}} {
		command(t, tool, []string{"GOFLAGS=-mod=mod", "GOWORK=off"}, "go", args...)
	}
	accepts(t, content(t, filepath.Join(dir, "compose.yaml")), "condition: service_healthy", "condition: healthy", func(file string) *exec.Cmd {
		return exec.CommandContext(t.Context(), filepath.Join(tool, "compose"), file)
	})
}

func TestReleaseBuildsAreReproducibleAndInstallable(t *testing.T) {
	if !*full {
		t.Skip("run make release-check")
	}
	id := strings.TrimSpace(command(t, "../..", nil, "git", "rev-parse", "HEAD"))
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var dirs [2]string
	for i := range dirs {
		clone := filepath.Join(t.TempDir(), fmt.Sprint("clone", i))
		dirs[i] = filepath.Join(t.TempDir(), "dist")
		command(t, "", nil, "git", "clone", "-q", "--no-checkout", root, clone)
		command(t, clone, nil, "git", "checkout", "-q", "--detach", id)
		command(t, clone, nil, "go", "run", "./tools/release", "-out", dirs[i])
	}
	files, err := os.ReadDir(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	var endings []string
	for _, file := range files {
		name := file.Name()
		one, two := content(t, filepath.Join(dirs[0], name)), content(t, filepath.Join(dirs[1], name))
		if one != two {
			t.Errorf("%s differs between two builds: %x and %x", name, sha256.Sum256([]byte(one)), sha256.Sum256([]byte(two)))
		}
		if _, ending, ok := strings.Cut(strings.TrimPrefix(name, "semel_"), "_"); ok {
			endings = append(endings, ending)
		}
	}
	want := []string{
		"darwin_amd64.tar.gz", "darwin_arm64.tar.gz", "linux_amd64.deb", "linux_amd64.rpm", "linux_amd64.tar.gz",
		"linux_arm64.deb", "linux_arm64.rpm", "linux_arm64.tar.gz", "windows_amd64.zip", "windows_arm64.zip",
	}
	if slices.Sort(endings); !slices.Equal(endings, want) {
		t.Errorf("the files are %q, want %q", endings, want)
	}
	command(t, dirs[0], nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	for _, file := range files {
		name := filepath.Join(dirs[0], file.Name())
		switch {
		case strings.HasSuffix(name, ".tar.gz"):
			unpacked := t.TempDir()
			command(t, unpacked, nil, "tar", "-xzf", name)
			small(t, filepath.Join(unpacked, "semel"))
			if strings.HasSuffix(name, "_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz") {
				unpackedWorks(t, unpacked, id)
			}
		case strings.HasSuffix(name, ".cdx.json"):
			text := content(t, name)
			for _, module := range []string{"pkg:golang/github.com/jackc/pgx/v5@v", "pkg:golang/std@1."} {
				if !strings.Contains(text, module) {
					t.Errorf("the SBOM lacks %s", module)
				}
			}
		case strings.HasSuffix(name, "_linux_"+runtime.GOARCH+".deb"):
			debian(t, name)
		}
	}
}

// unpackedWorks tries the program, the completions and the manual of an archive.
func unpackedWorks(t *testing.T, dir, id string) {
	t.Helper()
	if got := command(t, dir, nil, "./semel", "version"); !strings.Contains(got, "("+id+") ") {
		t.Errorf("the program does not name the commit %s: %s", id, got)
	}
	command(t, dir, nil, "bash", "-n", "completions/semel.bash")
	for _, page := range []string{"semel.1", "semel-dedup.1", "semel-keys-resolve.1", "semel-kafka-txn-abort.1"} {
		name := filepath.Join(dir, "man", page)
		if !strings.Contains(content(t, name), ".SH EXAMPLES") {
			t.Errorf("%s has no examples", page)
		}
		if _, err := exec.LookPath("groff"); err != nil {
			continue
		}
		c := exec.CommandContext(t.Context(), "groff", "-man", "-Tutf8", "-ww", "-z", name)
		if output, err := c.CombinedOutput(); err != nil || len(bytes.TrimSpace(output)) > 0 {
			t.Errorf("groff %s: %v\n%s", page, err, output)
		}
	}
}

// debian installs a package, uses it and removes it.
func debian(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath("dpkg"); err != nil || os.Getuid() != 0 {
		t.Log("NOT CHECKED: installing a deb needs dpkg and root")
		return
	}
	if exec.CommandContext(t.Context(), "dpkg", "-s", "semel").Run() == nil {
		t.Fatal("a package semel is installed already: remove it first")
	}
	t.Cleanup(func() { _ = exec.Command("dpkg", "--purge", "semel").Run() }) // if the test ended early
	command(t, "", nil, "dpkg", "--install", name)
	if got := command(t, "", nil, "/usr/bin/semel", "version"); !strings.HasPrefix(got, "semel ") {
		t.Errorf("%s", got)
	}
	list := strings.Fields(command(t, "", nil, "dpkg", "-L", "semel"))
	for _, file := range []string{"/usr/bin/semel", "/usr/lib/systemd/system/semel.service", "/usr/share/man/man1/semel-dedup.1.gz", "/usr/share/bash-completion/completions/semel"} {
		if !slices.Contains(list, file) {
			t.Errorf("the package lacks %s", file)
		}
	}
	command(t, "", nil, "dpkg", "--purge", "semel")
	if _, err := os.Stat("/usr/bin/semel"); err == nil {
		t.Error("the program is still there after the removal")
	}
}
