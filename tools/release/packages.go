package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func sorted(list []entry) []entry {
	slices.SortFunc(list, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return list
}

// packages writes the deb and the rpm of a platform.
func packages(out, work, binary, platform string, c commit, extras []entry) error {
	contents := []string{place(binary, "/usr/bin/semel", "0755"), place("deploy/semel.service", "/usr/lib/systemd/system/semel.service", "0644"),
		place("deploy/semel-proxy.service", "/usr/lib/systemd/system/semel-proxy.service", "0644"), place("LICENSE", "/usr/share/doc/semel/copyright", "0644")}
	for _, e := range extras {
		data, to := e.data, ""
		switch base := filepath.Base(e.name); base {
		case "semel.bash":
			to = "/usr/share/bash-completion/completions/semel"
		case "_semel":
			to = "/usr/share/zsh/vendor-completions/_semel"
		case "semel.fish":
			to = "/usr/share/fish/vendor_completions.d/semel.fish"
		default:
			to = "/usr/share/man/man1/" + base + ".gz"
			var packed bytes.Buffer
			w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
			if err != nil {
				return err
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
			if err := w.Close(); err != nil {
				return err
			}
			data = packed.Bytes()
		}
		name := filepath.Join(work, filepath.Base(to))
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return err
		}
		contents = append(contents, place(name, to, "0644"))
	}
	_, arch, _ := strings.Cut(platform, "/")
	config := fmt.Sprintf(`name: semel
arch: %s
platform: linux
version: %q
section: utils
priority: optional
maintainer: The Semel authors
description: Make a message, event or request take effect once
license: Apache-2.0
mtime: %q
rpm: { buildhost: semel } # not the name of this machine
contents:
%s`, arch, c.version, c.time.Format(time.RFC3339), strings.Join(contents, ""))
	file := filepath.Join(work, "nfpm.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	for _, kind := range []string{"deb", "rpm"} {
		target := filepath.Join(out, "semel_"+c.version+"_linux_"+arch+"."+kind)
		epoch := fmt.Sprintf("SOURCE_DATE_EPOCH=%d", c.time.Unix())
		if _, err := run([]string{epoch, "GOFLAGS="}, "go", "run", nfpm, "package", "--config", file, "--packager", kind, "--target", target); err != nil {
			return err
		}
	}
	return nil
}

func place(from, to, mode string) string {
	return fmt.Sprintf("  - { src: %q, dst: %q, file_info: { mode: %s } }\n", from, to, mode)
}

// bill writes the software bill of materials as CycloneDX: the modules that are
// linked into the program.
func bill(name, binary string, c commit) error {
	type component struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		Version string `json:"version"`
		PURL    string `json:"purl"`
	}
	of := func(kind, path, version string) component {
		return component{kind, path, version, "pkg:golang/" + path + "@" + version}
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	components := []component{of("library", "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		components = append(components, of("library", module.Path, module.Version))
	}
	data, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   map[string]any{"timestamp": c.time.Format(time.RFC3339), "component": of("application", info.Main.Path, "v"+c.version)},
		"components": components,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}
