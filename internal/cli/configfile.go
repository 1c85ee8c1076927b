package cli

import (
	"io/fs"
	"os"
	"syscall"

	"github.com/semel-dev/semel/internal/config"
)

// loadConfig reads a configuration. If it comes from a pipe, the end of the
// program also ends the wait for the writer. choose selects the needed part; see
// config.ReadForStore.
func (a *app) loadConfig(name string, choose func(*config.File) (store string, only bool)) (*config.File, error) {
	flags := os.O_RDONLY
	if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		flags |= syscall.O_NONBLOCK // otherwise opening a pipe would block as well
	}
	file, err := os.OpenFile(name, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the file was only read, so nothing can be lost
	return a.kinds.ReadForStore(name, a.interruptible(file), a.env, choose)
}
