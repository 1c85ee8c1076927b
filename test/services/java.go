package services

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// classArchive is a file with classes that Java has read before.
const classArchive = "classes.jsa"

// writeClassArchive is the option by which a server writes one in its directory when
// it stops.
const writeClassArchive = "-XX:ArchiveClassesAtExit=" + classArchive

// readClassArchive is the option by which a server reads that of a template.
func readClassArchive(template string) string {
	return "-XX:SharedArchiveFile=" + filepath.Join(template, classArchive)
}

// archiveClasses starts a server of a kind that writes a class archive, and keeps the
// archive in a template. prepare is as in start.
func archiveClasses(ctx context.Context, template string, k kind, prepare func(ctx context.Context, dir string) error) error {
	server, err := start(ctx, k, prepare, nil)
	if err != nil {
		return err
	}
	err = server.Stop()
	if err == nil {
		err = asServer(exec.CommandContext(ctx, "cp", filepath.Join(server.Dir(), classArchive), template))
	}
	if err != nil {
		err = fmt.Errorf("archive of classes: %w\n%s", err, server.Log())
	}
	if closed := server.Close(); err == nil {
		err = closed
	}
	return err
}
