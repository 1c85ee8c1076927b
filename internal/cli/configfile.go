package cli

import (
	"io/fs"
	"os"
	"syscall"

	"github.com/semel-dev/semel/internal/config"
)

// loadConfig reads a configuration. If it comes from a pipe, the end of the
// program ends the wait for who writes. choose says what of it is needed: see
// config.ReadForStore.
func (a *app) loadConfig(name string, choose func(*config.File) (store string, only bool)) (*config.File, error) {
	flags := os.O_RDONLY
	if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		flags |= syscall.O_NONBLOCK // to open it would wait as well
	}
	file, err := os.OpenFile(name, flags, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read: there is nothing to lose
	return a.kinds.ReadForStore(name, a.interruptible(file), a.env, choose)
}
