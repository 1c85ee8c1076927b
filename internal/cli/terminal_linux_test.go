package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
)

// openTerminal returns both ends of a terminal with this many columns.
func openTerminal(t *testing.T, columns uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there is no terminal here: ", err)
	}
	t.Cleanup(func() { person.Close() })
	control := func(file *os.File, request uintptr, of unsafe.Pointer) {
		if _, _, failed := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), request, uintptr(of)); failed != 0 {
			t.Fatal(failed)
		}
	}
	var unlocked, number int32
	control(person, syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked))
	control(person, syscall.TIOCGPTN, unsafe.Pointer(&number))
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	size := [4]uint16{24, columns}
	control(program, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	return person, program
}

// TestRunShowsItsWorkOnATerminal reads what a person sees: a line for each pipeline that
// is replaced, and the log above.
func TestRunShowsItsWorkOnATerminal(t *testing.T) {
	t.Parallel()
	file := copyConfig(t, ", follow: true", "")
	writeFile(t, file, readFile(t, file)+`
  second: { source: { file: { paths: [none.jsonl], follow: true, state: second } }, key: { id: .id }, store: keys, sink: { webhook: { url: "http://127.0.0.1:1/", allow_private: true } }, parked: { path: p } }
`)
	writeFile(t, filepath.Join(filepath.Dir(file), "none.jsonl"), "")
	person, program := openTerminal(t, 80)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, kind.All(), []string{"run", file, "--admin", "off"}, strings.NewReader(""), &strings.Builder{}, program, noEnv)
		fmt.Fprintln(program, "\nTHE END")
	}()
	lines := regexp.MustCompile(`copy    \d+/s  fresh 67 %  lag 0 B  parked 0  ready\r?\nsecond  0/s  lag 0 B  parked 0  ready`)
	var seen strings.Builder
	shown := false
	for in := bufio.NewReader(person); !strings.Contains(seen.String(), "THE END"); {
		b, err := in.ReadByte()
		if err != nil {
			t.Fatalf("%v after %q", err, &seen)
		}
		if seen.WriteByte(b); !shown && b == 'y' && lines.MatchString(seen.String()) {
			shown = true
			cancel()
		}
	}
	text := seen.String()
	if status := <-ended; status != term.ExitDone || !shown {
		t.Errorf("status %d, shown %v: %q", status, shown, text)
	}
	if !strings.Contains(text, "ready\r\x1b[1A\x1b[J") {
		t.Errorf("the lines are not replaced: %q", text)
	}
	rest := text[strings.LastIndex(text, "\x1b[J"):]
	if strings.Contains(rest, "parked 0  ready") {
		t.Errorf("the lines stay: %q", rest)
	}
	if strings.Contains(text, "msg=progress") || !strings.Contains(text, "msg=ended pipeline=copy read=3 fresh=2 duplicate=1 parked=0 lag_bytes=0") {
		t.Errorf("the log: %q", text)
	}
}
