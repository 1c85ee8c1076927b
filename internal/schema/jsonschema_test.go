package schema_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/semel-dev/semel/internal/schema"
)

// TestJSONSchemaHasTheFormOfEachField compares the schema of single fields with JSON.
func TestJSONSchemaHasTheFormOfEachField(t *testing.T) {
	t.Parallel()
	var text string
	var count int64
	member := func() schema.Mapping {
		return schema.Mapping{Fields: []schema.Field{schema.TextField("a", &text, "The a.").Need(), schema.TextField("b", &text, "The b.")}}
	}
	either := func() schema.Mapping {
		m := member()
		m.Fields[0].Required = false
		m.OneOf = [][]string{{"a", "b"}}
		return m
	}
	const members = `"properties": {"a": {"$ref": "#/$defs/text", "description": "The a."}, "b": {"$ref": "#/$defs/text", "description": "The b."}}, "additionalProperties": false`
	for _, c := range []struct {
		field schema.Field
		want  string
	}{
		{schema.TextField("f", &text, "A text."), `{"$ref": "#/$defs/text", "description": "A text."}`},
		{schema.CountField("f", &count, "A count.").Or("5"), `{"$ref": "#/$defs/count", "description": "A count. Default: 5."}`},
		{schema.PauseField("f", nil, "A pause.").Means("none"), `{"$ref": "#/$defs/duration", "description": "A pause. Default: none."}`},
		{schema.TruthField("f", nil, "A fact."), `{"$ref": "#/$defs/true-or-false", "description": "A fact."}`},
		{schema.ChoiceField("f", &text, "A version.", "1", "new"), `{"anyOf": [{"enum": ["1", 1, "new"]}, {"type": "string", "pattern": "\\$\\{"}], "description": "A version."}`},
		{schema.TextsField("f", nil, "Texts."), `{"type": "array", "items": {"$ref": "#/$defs/text"}, "minItems": 1, "description": "Texts."}`},
		{
			schema.Field{Name: "f", Doc: "A list.", Form: schema.Form{Element: &schema.Form{Scalar: schema.ScalarText}, MayBeEmpty: true}},
			`{"type": "array", "items": {"$ref": "#/$defs/text"}, "description": "A list."}`,
		},
		{
			schema.Field{Name: "f", Doc: "Headers.", Form: schema.Form{Named: &schema.Form{Scalar: schema.ScalarSecret}}},
			`{"type": "object", "additionalProperties": {"$ref": "#/$defs/secret"}, "description": "Headers."}`,
		},
		{
			schema.Field{Name: "f", Doc: "Stores.", Form: schema.Form{Named: &schema.Form{Members: member}}},
			`{"type": "object", "additionalProperties": {"type": "object", "required": ["a"], ` + members + `}, "propertyNames": {"pattern": "^[A-Za-z0-9_-]{1,64}$"}, "minProperties": 1, "description": "Stores."}`,
		},
		{
			schema.Field{Name: "f", Doc: "One or more.", Form: schema.Form{Either: []schema.Form{{Scalar: schema.ScalarText}, {Element: &schema.Form{Scalar: schema.ScalarText}}}}},
			`{"anyOf": [{"$ref": "#/$defs/text"}, {"type": "array", "items": {"$ref": "#/$defs/text"}, "minItems": 1}], "description": "One or more."}`,
		},
		{schema.PartField("f", member, "A part."), `{"type": "object", "required": ["a"], ` + members + `, "description": "A part."}`},
		{schema.PartField("f", either, "One of two."), `{"type": "object", "allOf": [{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}], ` + members + `, "description": "One of two."}`},
		{schema.PartField("f", member, "A part.").Titled("Two Parts"), `{"$ref": "#/$defs/two-parts", "description": "A part."}`},
	} {
		page := jsonSchema(t, []schema.Field{c.field})
		var want any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if got := page["properties"].(map[string]any)["f"]; !reflect.DeepEqual(got, want) {
			shown, _ := json.Marshal(got)
			t.Errorf("got  %s\nwant %s", shown, c.want)
		}
	}
}

func jsonSchema(t *testing.T, sections []schema.Field, needed ...string) (page map[string]any) {
	t.Helper()
	text, err := schema.JSONSchema("Shop", sections, needed...)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &page); err != nil {
		t.Fatal(err)
	}
	return page
}

func TestJSONSchemaDefinesEveryFormThatItRefersTo(t *testing.T) {
	t.Parallel()
	page := jsonSchema(t, (&shop{}).mapping().Fields, "name", "pay")
	if page["title"] != "Shop" || page["additionalProperties"] != false || !reflect.DeepEqual(page["patternProperties"], map[string]any{"^x-": true}) {
		t.Errorf("%v", page)
	}
	if want := []any{map[string]any{"required": []any{"name"}}, map[string]any{"required": []any{"pay"}}}; !reflect.DeepEqual(page["anyOf"], want) {
		t.Errorf("needed: %v, want %v", page["anyOf"], want)
	}
	definitions := page["$defs"].(map[string]any)
	if _, ok := definitions["limits"].(map[string]any)["properties"].(map[string]any)["max"]; !ok {
		t.Errorf("a mapping with a title is no definition: %v", definitions["limits"])
	}
	referred := 0
	var visit func(node any)
	visit = func(node any) {
		switch node := node.(type) {
		case map[string]any:
			if ref, ok := node["$ref"].(string); ok {
				referred++
				if _, ok := definitions[ref[len("#/$defs/"):]]; !ok {
					t.Errorf("%s is not defined", ref)
				}
			}
			for _, member := range node {
				visit(member)
			}
		case []any:
			for _, element := range node {
				visit(element)
			}
		}
	}
	visit(page)
	if referred < len((&shop{}).mapping().Fields) {
		t.Errorf("%d references for %d fields", referred, len((&shop{}).mapping().Fields))
	}
}
