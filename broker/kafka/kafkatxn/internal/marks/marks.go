// Package marks notes, with a committed offset, which parts of which topics hold the state
// that belongs to the offset. So a later start notices that a topic was emptied, made again
// or restored.
package marks

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Prefix is the start of a note.
const Prefix = "state: "

// ID is the id of a topic. The zero ID is unknown.
type ID = [16]byte

// Extent is the part of a partition that holds state.
type Extent struct {
	Topic ID
	// Low is the offset up to which no record counts any longer, or -1 if only the times of
	// the records show that; and End is the offset after the last record that was written.
	Low, End int64
	// Times are some of the records, if Low is -1, in the order of their offsets.
	Times []Time
}

// Time is when a record was written, in milliseconds.
type Time struct{ Offset, At int64 }

// Note belongs to the committed offset of a partition.
type Note struct {
	Read ID // the topic of the offset
	// Copied is the topic to which its records are copied. It is zero if they are decided.
	Copied ID
	// Keys is in the changelog of keys. State is in that of the state of an operator, and zero
	// without one.
	Keys, State Extent
}

// Of returns Keys for 0, and State for 1.
func (n *Note) Of(changelog int) *Extent { return [...]*Extent{&n.Keys, &n.State}[changelog] }

// MostTimes is how many times an Extent has.
const MostTimes = 8

// Wrote notes that records from one offset to another were written. Records count for a
// time, in milliseconds.
func (e *Extent) Wrote(from, end, now, keep int64) {
	e.End = end
	if e.Low >= 0 {
		return
	}
	// Each record shows that those before it are not newer. So a few that are far enough from
	// each other say nearly as much as all, and the last one says whether any counts.
	if n := len(e.Times); n > 1 && e.Times[n-1].At-e.Times[n-2].At < max(keep/(MostTimes-2), 1) {
		e.Times = e.Times[:n-1]
	}
	e.Times = append(e.Times, Time{from, now})
	e.Times = slices.DeleteFunc(e.Times, func(t Time) bool { return t.At <= now-keep })
	if len(e.Times) > MostTimes {
		e.Times = slices.Delete(e.Times, 1, 2)
	}
}

// Present is what a partition has now.
type Present struct {
	Topic      ID
	Start, End int64
}

// Lacks says what of an extent is gone, or "". Records count for a time in milliseconds, if
// their times show that.
func (e *Extent) Lacks(p Present, now, keep int64) string {
	switch {
	case e.End == 0 && e.Topic == ID{}:
		return "" // nothing was noted
	case e.Topic != p.Topic && e.Topic != ID{} && p.Topic != ID{}:
		return "is another topic than before: it was deleted and made again, or its name was changed"
	case p.End < e.End:
		return fmt.Sprintf("ends at offset %d, and had records up to %d: it was restored from a copy, or brokers lost records", p.End, e.End)
	case e.Low >= 0 && p.Start > e.Low:
		return fmt.Sprintf("begins at offset %d, and records from %d on still count: they were deleted", p.Start, e.Low)
	}
	for _, t := range e.Times {
		if t.Offset < p.Start && t.At > now-keep {
			return fmt.Sprintf("begins at offset %d, and the record at %d of %s still counts: it was deleted", p.Start, t.Offset, time.UnixMilli(t.At).UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// String returns the note as text.
func (n *Note) String() string {
	s := Prefix + "of=" + idText(n.Read)
	if n.Copied != (ID{}) {
		return s + " copied=" + idText(n.Copied)
	}
	s += " keys=" + n.Keys.text()
	if n.State.Topic != (ID{}) || n.State.End > 0 {
		s += " state=" + n.State.text()
	}
	return s
}

func idText(id ID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

func (e *Extent) text() string {
	list := []string{idText(e.Topic), number(e.Low), number(e.End)}
	for _, t := range e.Times {
		list = append(list, number(t.Offset), number(t.At))
	}
	return strings.Join(list, ",")
}

// base is that of the numbers in a note, which must be short.
const base = 36

func number(n int64) string { return strconv.FormatInt(n, base) }

// Parse finds a note in the metadata of a committed offset. Without one it returns nil.
func Parse(metadata string) (*Note, error) {
	_, text, ok := strings.Cut(metadata, Prefix)
	if !ok {
		return nil, nil
	}
	n := &Note{}
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		var err error
		switch name {
		case "of":
			n.Read, err = parseID(value)
		case "copied":
			n.Copied, err = parseID(value)
		case "keys":
			n.Keys, err = parseExtent(value)
		case "state":
			n.State, err = parseExtent(value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
	}
	return n, nil
}

func parseID(text string) (id ID, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil && len(b) != len(id) {
		err = fmt.Errorf("%d bytes are no topic id", len(b))
	}
	copy(id[:], b)
	return id, err
}

func parseExtent(text string) (e Extent, err error) {
	parts := strings.Split(text, ",")
	if e.Topic, err = parseID(parts[0]); err != nil {
		return e, err
	}
	var list []int64
	for _, part := range parts[1:] {
		n, err := strconv.ParseInt(part, base, 64)
		if err != nil {
			return e, err
		}
		list = append(list, n)
	}
	if len(list) < 2 || len(list)%2 > 0 {
		return e, fmt.Errorf("%d numbers", len(list))
	}
	e.Low, e.End = list[0], list[1]
	for i := 2; i < len(list); i += 2 {
		e.Times = append(e.Times, Time{list[i], list[i+1]})
	}
	return e, nil
}
