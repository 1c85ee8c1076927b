package dedup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"
)

// The store keeps four kinds of named values. They are JSON, so that a person
// can read them. Unknown fields are ignored.
const (
	outputValue   = "dedup/output:"   // followed by the path: an outputState
	runValue      = "dedup/run:"      // followed by the identity of the run: a runState
	positionValue = "dedup/position:" // followed by the identity of the run: a positionState
	inputValue    = "dedup/input:"    // followed by the settings, a colon and the path: a finishedState
)

// outputState is what the store knows of an output file.
type outputState struct {
	// Length and CRC describe the committed content.
	Length int64  `json:"length"`
	CRC    uint32 `json:"crc"`
	// Content is the size of that content before it was compressed. It is 0 if
	// it is not compressed.
	Content int64 `json:"content,omitempty"`
	// Lines is the number of these lines that were written for the store.
	Lines int64 `json:"lines,omitempty"`
	// Open is set while a run may have written more than is committed.
	Open openMode `json:"open,omitempty"`
	// Changed is the modification time in nanoseconds of the complete file. If
	// it is 0, only the checksum identifies the file.
	Changed int64 `json:"changed,omitempty"`
}

// openMode says what a crash leaves after the committed length.
type openMode string

const (
	// closed means that there is nothing after it.
	closed openMode = ""
	// checkpointed means lines that will be written again.
	checkpointed openMode = "checkpointed"
	// piped means lines that may never come again.
	piped openMode = "piped"
)

// runState describes the inputs of an unfinished run as they were when it started.
type runState struct {
	Inputs  []inputState `json:"inputs"`
	Command *command     `json:"command,omitempty"`
	// Keys is the value of knownKeys when the run started.
	Keys string `json:"keys,omitempty"`
	// Anew is [recollection.anew].
	Anew bool `json:"anew,omitempty"`
}

// inputState identifies a file. It has only a path if the input is not a regular file.
type inputState struct {
	Path string `json:"path"`
	facts
	// Length is the size of the file, and Sample is a checksum of the first and the last bytes.
	Length int64  `json:"length,omitempty"`
	Sample uint32 `json:"sample,omitempty"`
	// Read is set after the input was read to its end.
	Read *readState `json:"read,omitempty"`
}

// readState is the part of an input that was read.
type readState struct {
	position
	// Start is where the first line begins.
	Start int64 `json:"start,omitempty"`
	// Content identifies the decompressed bytes.
	Content fingerprint `json:"content"`
}

// positionState is the progress of a run.
type positionState struct {
	position
	// Content identifies the current input before the position.
	Content        fingerprint `json:"content"`
	Counts         Counts      `json:"counts"`
	ElapsedSeconds float64     `json:"elapsed_seconds"`
	Finished       bool        `json:"finished,omitempty"`
	// Failed is set if the run stopped at a line after the position, which the
	// user must fix.
	Failed bool `json:"failed,omitempty"`
	// Replay is [committer.replay].
	Replay bool `json:"replay,omitempty"`
	// Covered is set if another command has since decided all lines of an
	// unfinished run.
	Covered bool `json:"covered,omitempty"`
}

// values looks up named values.
type values func(name string) ([]byte, bool)

// read decodes a named value and reports whether it exists.
func (v values) read(name string, into any) (bool, error) {
	data, ok := v(name)
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("dedup: the store's value %s: %w", name, err)
	}
	return true, nil
}

// identity names a command in the store.
func (c command) identity() string {
	c.SameScope = false
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings always encode
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// The processor computes castagnoli with an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sampleBytes is the number of bytes at each end of an input that identify it.
const sampleBytes = 64 << 10

// recognise describes an input by its first size bytes.
func recognise(path string, size int64) (inputState, error) {
	file, err := os.Open(path)
	if err != nil {
		return inputState{}, err
	}
	defer file.Close()
	s := inputState{Path: path, Length: size}
	buf := make([]byte, min(size, sampleBytes))
	for _, at := range []int64{0, size - int64(len(buf))} {
		n, err := file.ReadAt(buf, at)
		if err != nil && err != io.EOF {
			return s, err
		}
		s.Sample = crc32.Update(s.Sample, castagnoli, buf[:n])
	}
	return s, nil
}

// checksum returns the CRC of the first length bytes of a file.
func checksum(path string, length int64) (uint32, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	hash := crc32.New(castagnoli)
	n, err := io.Copy(hash, io.LimitReader(file, length))
	if err == nil && n < length {
		err = io.ErrUnexpectedEOF
	}
	return hash.Sum32(), err
}

// settledFor is how old a modification time must be to prove anything, because
// the clocks of file systems are coarse.
const settledFor = 20 * time.Millisecond

// changedTime returns the modification time of a file if the time proves that
// the file did not change after now, and 0 otherwise. A time of whole seconds proves
// nothing.
func changedTime(info os.FileInfo, now time.Time) int64 {
	if info.ModTime().Nanosecond() == 0 || now.Sub(info.ModTime()) < settledFor {
		return 0
	}
	return info.ModTime().UnixNano()
}
