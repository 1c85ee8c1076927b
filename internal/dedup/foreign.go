package dedup

import (
	"bytes"
	"fmt"
	"strings"
)

// foreign is an encoding that dedup does not read.
type foreign struct {
	name    string
	magic   []byte
	at      int    // position of magic
	command string // prints the content of the file whose name follows
}

var foreignKinds = []foreign{
	{"xz", []byte("\xfd7zXZ\x00"), 0, "xz -dc"},
	{"bzip2", []byte("BZh91AY&SY"), 0, "bzip2 -dc"},
	{"a zip archive", []byte("PK\x03\x04"), 0, "unzip -p"},
	{"UTF-16", []byte("\xff\xfe"), 0, "iconv -f UTF-16 -t UTF-8"},
	{"UTF-16", []byte("\xfe\xff"), 0, "iconv -f UTF-16 -t UTF-8"},
	{"a tar archive", []byte("ustar"), 257, "tar -xOf"},
}

// checkForeign refuses content that is not lines. It does not wait for more bytes of a
// live stream than it needs.
func (s *stream) checkForeign(name string) error {
	for _, f := range foreignKinds {
		if f.at == 0 && !beginsWith(s.plain, f.magic) {
			continue
		}
		if f.at > 0 {
			if s.live {
				continue
			}
			head, err := s.plain.Peek(f.at + len(f.magic))
			if err != nil || !bytes.Equal(head[f.at:], f.magic) {
				continue
			}
		}
		if name == Stdio {
			return fmt.Errorf("this is %s: pass it through %s first", f.name, f.command)
		}
		return fmt.Errorf("this is %s: write %s %s | semel dedup and the flags", f.name, f.command, shellWord(name))
	}
	return nil
}

// separated suggests a format for the first line of an input that is not JSON. A
// header has at least two names, and a person put the same sign between them.
func separated(line []byte) string {
	text := strings.TrimSpace(string(line))
	for _, c := range []struct{ sign, name, flags string }{
		{",", "CSV", "--format csv"},
		{"\t", "TSV", "--format tsv"},
		{";", "CSV", "--format csv --delimiter ';'"},
	} {
		names := strings.Split(text, c.sign)
		if len(names) < 2 {
			continue
		}
		for i, name := range names {
			if name = strings.Trim(strings.TrimSpace(name), `"`); name == "" || strings.ContainsAny(name, `{}[]:,;"`) {
				return ""
			}
			names[i] = name
		}
		return fmt.Sprintf("line 1 looks like %s (%s): add %s", c.name, shorten(strings.Join(names, ",")), c.flags)
	}
	return ""
}

// shorten returns the start of a text.
func shorten(text string) string {
	const most = 60
	runes := []rune(text)
	if len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
