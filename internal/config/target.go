package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Target is the name of a sink's target, such as a topic: one name for all messages, or a name in
// each message.
type Target struct {
	// Name is the name for all messages, or "".
	Name string
	// Route chooses the name of each message. It is nil if Name is set.
	Route *pipeline.Route
}

// Names returns the names that are known without a message.
func (t *Target) Names() []string {
	switch {
	case t.Route != nil:
		return t.Route.Names()
	case t.Name != "":
		return []string{t.Name}
	}
	return nil
}

// Has reports whether a message can be written to a name.
func (t *Target) Has(name string) bool {
	return t.Name != "" && t.Name == name || t.Route != nil && t.Route.Allows(name)
}

// Describe says where a message is written, after what. It returns "" if the message names
// no target that is allowed.
func (t *Target) Describe(what string, m *semel.Message) string {
	name := t.Name
	if t.Route != nil {
		name, _ = t.Route.Target(m) // "" if it has none
	}
	if name == "" {
		return ""
	}
	return what + name
}

// String describes the target for people.
func (t *Target) String() string {
	if t.Route != nil {
		return t.Route.String()
	}
	return t.Name
}

// TargetField is a text, or the place of the name in each message and the names that are
// allowed.
func TargetField(name string, target *Target, doc string) schema.Field {
	var from string
	var allow []string
	members := func() schema.Mapping {
		return schema.Mapping{
			Fields: []schema.Field{
				{Name: "from", Doc: "Where each message has the name: `source`, the topic of an outbox row or the topic, stream or queue that was read, or `header:NAME`.", Required: true, Form: schema.Form{Scalar: schema.ScalarValue}, Read: func(v schema.Value) {
					schema.Quantity(v, &from, "a text", func(text string) (string, error) {
						if header, ok := strings.CutPrefix(text, "header:"); text != "source" && (!ok || header == "") {
							return "", fmt.Errorf("write source or header:NAME")
						}
						return text, nil
					})
				}},
				schema.TextsField("allow", &allow, "The names that messages may use. One that ends in `*` allows every longer name with that beginning. Another message fails.").Need(),
			},
			Check: func(v schema.Value, there schema.Members) {
				_, hasFrom := there["from"]
				if list, ok := there["allow"]; ok && hasFrom && from != "" && len(allow) > 0 {
					if route, err := pipeline.NewRoute(from, allow...); err != nil {
						list.Wrong("write names, with * at the end of a name at most")
					} else {
						target.Route = route
					}
				}
			},
		}
	}
	return schema.Field{
		Name: name, Doc: doc,
		Form: schema.Form{Either: []schema.Form{{Scalar: schema.ScalarText}, {Members: members, Title: "Name from the message"}}},
		Read: func(v schema.Value) {
			if v.IsMapping() {
				v.Mapping(members())
				return
			}
			v.Text(&target.Name)
		},
	}
}

// LintTarget notes a target that messages may choose freely.
func (l *Linter) LintTarget(path string, t *Target) {
	if t.Route != nil && strings.HasPrefix(t.Route.From(), "header:") {
		l.Value(path+".from", t.Route.From(), "no message names its target, and every one is parked")
	}
	if t.Route != nil && slices.Contains(t.Route.Prefixes(), "") {
		l.Add(doctor.Warning, NoRisk, l.At(path+".allow"), "*", "a message can be written to any name, also to one that is meant for something else", "list the names, or their beginnings")
	}
}
