package oncecmd

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
)

// slow is a stdout whose reader reads nothing before the command has ended.
type slow struct {
	bytes.Buffer
	read chan struct{}
}

func (s *slow) Write(data []byte) (int, error) {
	<-s.read
	return s.Buffer.Write(data)
}

// The rest of the output is in the pipe when the process group ends, however long stdout takes.
func TestASlowReaderGetsAllOutput(t *testing.T) {
	t.Parallel()
	to := &slow{read: make(chan struct{})}
	o := &output{to: to, most: 10}
	command, err := o.pipe()
	if err != nil {
		t.Fatal(err)
	}
	go o.copy()
	text := bytes.Repeat([]byte("0123456789"), 6000) // less than the pipe takes
	for _, part := range [][]byte{text[:100], text[100:]} {
		if _, err := command.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for !o.ended.Load() {
			<-time.After(time.Millisecond)
		}
		close(to.read)
	}()
	o.end() // a process that left the group has the pipe open
	if err := command.Close(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(to.Bytes(), text) || o.written != int64(len(text)) || string(o.kept) != "0123456789" {
		t.Errorf("%d of %d bytes were passed on, %d were counted, and %q was kept", to.Len(), len(text), o.written, o.kept)
	}
}

// A host that stands still while the output is read takes all the time that a call waits for more.
func TestThePipeIsReadAfterTheTimeForIt(t *testing.T) {
	t.Parallel()
	o := &output{}
	command, err := o.pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer o.reader.Close()
	if _, err := command.WriteString("the rest"); err != nil {
		t.Fatal(err)
	}
	if err := o.reader.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 32)
	if n, err := o.reader.Read(buffer); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if n, err := readNow(o.reader, buffer); string(buffer[:n]) != "the rest" || err != nil {
		t.Errorf("%q, %v", buffer[:n], err)
	}
	if n, err := readNow(o.reader, buffer); n != 0 || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("of an empty pipe: %d bytes, %v", n, err)
	}
	if err := command.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := readNow(o.reader, buffer); n != 0 || err != io.EOF {
		t.Errorf("of a pipe without a writer: %d bytes, %v", n, err)
	}
}

// A process that left the group and writes without end does not hold the call up.
func TestAFloodAfterTheEndOfTheCommandIsCut(t *testing.T) {
	t.Parallel()
	var to bytes.Buffer
	o := &output{to: &to, most: 10}
	command, err := o.pipe()
	if err != nil {
		t.Fatal(err)
	}
	go o.copy()
	flooded := make(chan error)
	go func() {
		block := make([]byte, 64<<10)
		var err error
		for err == nil {
			_, err = command.Write(block)
		}
		flooded <- err
	}()
	o.end()
	if err := <-flooded; !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the flood ended with %v", err)
	}
	if err := command.Close(); err != nil {
		t.Error(err)
	}
}
