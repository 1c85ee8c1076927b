package services

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// copyJars is the Maven goal that copies jars. It has a fixed plugin version,
// because the default version changes over time.
const copyJars = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

// getMaven copies jars and their dependencies into "made".
func getMaven(ctx context.Context, progress io.Writer, work string, p Package) error {
	var pom strings.Builder
	pom.WriteString(`<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>semel</groupId><artifactId>` + p.Name + `</artifactId><version>1</version><dependencies>
`)
	for _, a := range p.maven {
		fmt.Fprintf(&pom, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n", a.group, a.id, a.version)
	}
	pom.WriteString("</dependencies></project>\n")
	project, made := filepath.Join(work, "pom.xml"), filepath.Join(work, "made")
	if err := os.WriteFile(project, []byte(pom.String()), 0o644); err != nil {
		return err
	}
	if err := tell(ctx, progress, "", "mvn", "-B", "-q", "-f", project, copyJars, "-DincludeScope=runtime", "-DoutputDirectory="+made); err != nil {
		return err
	}
	jars, err := filepath.Glob(filepath.Join(made, "*.jar"))
	if err != nil {
		return err
	}
	for _, jar := range jars { // servers read them, whatever the umask of this process is
		if err := os.Chmod(jar, 0o644); err != nil {
			return err
		}
	}
	return os.Chmod(made, 0o755)
}

// getDeb downloads a system package and copies only its file into "made". It
// does not install the package or its dependencies.
func getDeb(ctx context.Context, progress io.Writer, work string, p Package) error {
	if os.Geteuid() == 0 {
		if err := tell(ctx, progress, "", "apt-get", "update", "-q"); err != nil {
			return err
		}
	}
	if err := tell(ctx, progress, work, "apt-get", "download", "-q", p.deb); err != nil {
		return err
	}
	archives, _ := filepath.Glob(filepath.Join(work, "*.deb"))
	if len(archives) != 1 {
		return fmt.Errorf("apt-get downloaded %d packages of %s", len(archives), p.deb)
	}
	if err := tell(ctx, progress, work, "dpkg-deb", "-x", archives[0], "all"); err != nil {
		return err
	}
	target := filepath.Join(work, "made", filepath.FromSlash(p.file))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(work, "all", filepath.FromSlash(p.file)), target); err != nil {
		return err
	}
	return os.Chmod(target, 0o755)
}

// getModule builds a program of a Go module into "made".
func getModule(ctx context.Context, progress io.Writer, work string, p Package) error {
	made := filepath.Join(work, "made")
	if err := tell(ctx, progress, work, "env", "GOBIN="+made, "CGO_ENABLED=0", "GOFLAGS=-trimpath", "go", "install", "-ldflags=-s -w", p.module); err != nil {
		return err
	}
	return os.Chmod(made, 0o755)
}
