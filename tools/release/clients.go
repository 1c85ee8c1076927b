package main

import (
	"path/filepath"
	"strconv"
)

// clients writes the packages of the clients: a wheel for Python, and a tarball for
// Node. They are built in a copy of the commit, because their tools write beside the source.
func clients(out, work string, c commit) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	archived := filepath.Join(work, "clients.tar")
	for _, command := range [][]string{
		{"git", "archive", "--output", archived, "HEAD", "clients"},
		{"tar", "-C", work, "-xf", archived},
		{"npm", "--prefix", filepath.Join(work, "clients", "typescript"), "ci", "--no-audit", "--no-fund"},
		{"npm", "pack", "--silent", "--pack-destination", out, filepath.Join(work, "clients", "typescript")},
		{"python3", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, filepath.Join(work, "clients", "python")},
	} {
		if _, err := run([]string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(c.time.Unix(), 10)}, command[0], command[1:]...); err != nil {
			return err
		}
	}
	return nil
}
