package serve

import (
	"strings"

	"github.com/semel-dev/semel"
)

// provenance is what a claim says of its call. The store keeps it as the origin of the
// record, for people and for the answers to later claims.
type provenance struct{ origin, holder, requestID string }

const (
	markHolder  = "holder "
	markRequest = "request "
	between     = "; "
)

// text returns the origin that the store keeps. What does not fit is left out, the holder
// first.
func (p provenance) text() string {
	for {
		var parts []string
		if p.origin != "" {
			parts = append(parts, p.origin)
		}
		if p.holder != "" {
			parts = append(parts, markHolder+p.holder)
		}
		if p.requestID != "" {
			parts = append(parts, markRequest+p.requestID)
		}
		text := strings.Join(parts, between)
		switch {
		case len(text) <= semel.MaxOriginBytes:
			return text
		case p.holder != "":
			p.holder = ""
		default:
			p.requestID = ""
		}
	}
}

// provenanceOf reads what text wrote. An origin of another writer is whole.
func provenanceOf(text string) (p provenance) {
	last := func(mark string) (value string) {
		if rest, ok := strings.CutPrefix(text, mark); ok && !strings.Contains(rest, between) {
			text = ""
			return rest
		}
		if i := strings.LastIndex(text, between+mark); i >= 0 && !strings.Contains(text[i+len(between):], between) {
			value, text = text[i+len(between)+len(mark):], text[:i]
		}
		return value
	}
	p.requestID = last(markRequest)
	p.holder = last(markHolder)
	p.origin = text
	return p
}
