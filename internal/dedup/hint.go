package dedup

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/framing"
	"github.com/semel-dev/semel/key"
)

// hint says why a record may have no key: the line is no JSON document. For the first line of
// an input, it may also say that the rule has a typing error, or that the input does not have
// one document on each line. It returns "" if it finds no such cause. sure is set if the cause leaves
// no doubt that the line itself is right.
func (x *extraction) hint(line []byte, err error, first bool) (text string, sure bool) {
	var missing *key.MissingError
	absent := errors.As(err, &missing) && missing.Reason == key.Absent
	if x.comma != 0 {
		if !first || !absent || !x.noHeader {
			return "", false
		}
		fields, _ := framing.AppendFields(nil, nil, line, x.comma, allFields)
		if len(fields) == 1 {
			text = otherComma(line, x.comma)
			return "the record has one column, .1" + text, text != ""
		}
		return fmt.Sprintf("the record has the columns .1 to .%d", len(fields)), false
	}
	flaw, is := diagnose.FlawOf(line, err)
	_, malformed := errors.AsType[*key.SyntaxError](err)
	switch body := bytes.TrimSpace(line); {
	case flaw == diagnose.Foreign:
		return "the line " + is, first
	case flaw == diagnose.JSONInText:
		return "the line " + is + ": pass it through jq -c fromjson", first
	case flaw == diagnose.Array && malformed && bytes.HasSuffix(body, []byte(",")):
		return "the line " + is + ": add --format json if the input has the whole array, or remove the commas with sed 's/,$//'", first
	case flaw == diagnose.Several && x.format != JSON:
		return "the line " + is + ": add --format json, which reads documents behind each other", first
	case !first || len(body) == 0:
		return "", false
	case body[0] == '[' && x.format == JSON && absent:
		return "the element is an array itself: pass the input through jq -c '.[][]'", true
	case body[0] == '[' && (absent || malformed) && x.format != JSON:
		return "the input looks like one JSON array: add --format json, which reads its elements", true
	case flaw == diagnose.SpansLines && body[0] == '{' && x.format != JSON:
		return "the input looks like JSON that spans lines: add --format json, which reads such documents", true
	case malformed:
		text = separated(line)
		return text, text != ""
	case absent:
		return memberHint(line, missing.Rule)
	}
	return "", false
}

// memberHint lists the members of the object in which the last part of a path
// is missing, and suggests the closest one.
func memberHint(line []byte, rule string) (text string, sure bool) {
	return didYouMean(diagnose.Member(line, rule))
}

// didYouMean joins the members that a record has and the one closest to the wanted field.
func didYouMean(has, near string) (text string, sure bool) {
	if near == "" {
		return has, false
	}
	return has + ": did you mean " + near + "?", true
}

// fieldHint lists the columns that are there and suggests the closest one.
func fieldHint(where string, fields []string, missing string, path func(string) string) (text string, sure bool) {
	near, ok := diagnose.Nearest(missing, fields)
	if ok {
		near = path(near)
	}
	return didYouMean(diagnose.Fields(where, fields), near)
}

// otherComma suggests a delimiter if a record of one field seems to have another
// one than comma.
func otherComma(record []byte, comma byte) string {
	for _, other := range ";\t|," {
		if byte(other) != comma && bytes.IndexByte(record, byte(other)) >= 0 {
			return fmt.Sprintf(": if %q separates the fields, add --delimiter %s", other, delimiterWord(byte(other)))
		}
	}
	return ""
}

// delimiterWord returns a delimiter as people write it on a command line.
func delimiterWord(comma byte) string {
	if comma == '\t' {
		return "tab"
	}
	return shellWord(string(rune(comma)))
}
