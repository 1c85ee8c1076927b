// Release builds what a release consists of, from the commit in the current
// directory, which must be a clean checkout: binaries for all platforms in archives,
// deb and rpm packages, the clients' wheel and tarball, an SBOM and checksums. Two runs
// for one commit, in any directories, give the same bytes. It needs npm and pip.
//
//	release -out DIR [-only OS/ARCH]
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const nfpm = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"

var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

func main() {
	out := flag.String("out", "dist", "directory for the files of the release")
	only := flag.String("only", "", "build this platform only, OS/ARCH")
	flag.Parse()
	if err := release(*out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func release(out, only string) error {
	chosen := platforms
	if only != "" {
		if !slices.Contains(platforms, only) {
			return fmt.Errorf("-only %s: expected one of %s", only, strings.Join(platforms, ", "))
		}
		chosen = []string{only}
	}
	c, err := head()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "semel-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // a temporary directory
	host := filepath.Join(work, "host")
	if err := build(host, runtime.GOOS+"/"+runtime.GOARCH); err != nil {
		return err
	}
	extras, err := documents(host)
	if err != nil {
		return err
	}
	for _, platform := range chosen {
		binary := filepath.Join(work, strings.ReplaceAll(platform, "/", "-"))
		if err := build(binary, platform); err != nil {
			return err
		}
		if err := archive(out, binary, platform, c, extras); err != nil {
			return err
		}
		if strings.HasPrefix(platform, "linux/") {
			if err := packages(out, work, binary, platform, c, extras); err != nil {
				return err
			}
		}
	}
	if err := clients(out, work, c); err != nil {
		return err
	}
	if err := bill(filepath.Join(out, "semel_"+c.version+".cdx.json"), host, c); err != nil {
		return err
	}
	return checksums(out)
}

// build builds the program for a platform.
func build(binary, platform string) error {
	system, arch, _ := strings.Cut(platform, "/")
	_, err := run([]string{"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + arch, "GOFLAGS="}, "go", "build", "-buildvcs=true", "-trimpath", "-ldflags=-s -w", "-o", binary, "./cmd/semel")
	return err
}

// entry is a file of an archive.
type entry struct {
	name string
	mode fs.FileMode
	data []byte
}

// archive writes the archive of a platform: zip for Windows, tar.gz for others.
func archive(out, binary, platform string, c commit, extras []entry) error {
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	name := "semel"
	if strings.HasPrefix(platform, "windows/") {
		name += ".exe"
	}
	entries := []entry{{name, 0o755, program}}
	for _, file := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"} {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		entries = append(entries, entry{file, 0o644, data})
	}
	entries = append(entries, extras...)
	base := "semel_" + c.version + "_" + strings.ReplaceAll(platform, "/", "_")
	var packed bytes.Buffer
	if strings.HasPrefix(platform, "windows/") {
		base, err = base+".zip", zipped(&packed, c.time, entries)
	} else {
		base, err = base+".tar.gz", tarred(&packed, c.time, entries)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, base), packed.Bytes(), 0o644)
}

func tarred(w io.Writer, at time.Time, entries []entry) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	files := tar.NewWriter(compressed)
	for _, e := range entries {
		if err := files.WriteHeader(&tar.Header{Name: e.name, Mode: int64(e.mode), Size: int64(len(e.data)), ModTime: at, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		if _, err := files.Write(e.data); err != nil {
			return err
		}
	}
	if err := files.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

func zipped(w io.Writer, at time.Time, entries []entry) error {
	files := zip.NewWriter(w)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at}
		header.SetMode(e.mode)
		file, err := files.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := file.Write(e.data); err != nil {
			return err
		}
	}
	return files.Close()
}

// checksums writes the SHA-256 of every file in the form that sha256sum -c reads.
func checksums(out string) error {
	const name = "SHA256SUMS"
	files, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, file := range files {
		if file.Name() == name {
			continue
		}
		data, err := os.ReadFile(filepath.Join(out, file.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(data), file.Name())
	}
	return os.WriteFile(filepath.Join(out, name), []byte(list.String()), 0o644)
}
