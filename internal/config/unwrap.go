package config

import (
	"strings"

	"github.com/semel-dev/semel/internal/envelope"
	"github.com/semel-dev/semel/internal/schema"
)

// unwrapField is a preset, or a list of steps.
func unwrapField(p *Pipeline) schema.Field {
	presets := envelope.Presets()
	var list []string
	for _, name := range presets {
		doc, rule := envelope.Describe(name)
		list = append(list, "`"+name+"`: "+doc+" The key is "+rule+" if the pipeline has none.")
	}
	doc := "Where the message is inside the message that the source has. Key, filter, map and sink see the message inside; the message that was read is parked. A message that cannot be unwrapped is treated as `on_missing` says, or parked. Another `unwrap` is another key rule, so it needs another `key.scope`. " +
		"A preset, or a list of steps: `.path` is a value of a JSON document, `json` reads a text as JSON, `base64` decodes a text, and a preset is a step too. " + strings.Join(list, " ")
	return schema.Field{
		Name: "unwrap", Doc: doc, Shown: "the message that the source has",
		Form: schema.Form{Either: []schema.Form{{Words: presets}, {Element: &schema.Form{Scalar: schema.ScalarText}}}},
		Read: func(v schema.Value) {
			var steps []string
			wrong := false
			step := func(v schema.Value) {
				var text string
				v.Text(&text)
				if text == "" {
					wrong = true // it was said
				} else if _, err := envelope.Parse([]string{text}); err != nil {
					v.Wrong("%v", err)
					wrong = true
				}
				steps = append(steps, text)
			}
			if v.IsList() {
				v.List(step)
			} else {
				step(v)
			}
			if !wrong && len(steps) > 0 {
				p.Unwrap, _ = envelope.Parse(steps) // each step was parsed
			}
		},
	}
}
