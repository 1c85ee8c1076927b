package serve_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/semel-dev/semel/internal/storeapi"
)

// document is what the checks read of the OpenAPI document.
type document struct {
	OpenAPI string
	Paths   map[string]map[string]struct {
		OperationID string
		Summary     string
		Tags        []string
		RequestBody *struct {
			Content map[string]struct{ Schema map[string]any }
		}
		Responses map[string]struct {
			Ref     string `json:"$ref"`
			Content map[string]struct{ Schema map[string]any }
		}
	}
	Components struct{ Schemas map[string]any }
}

// contract checks exchanges against the OpenAPI document.
type contract struct {
	document
	compiler *jsonschema.Compiler

	mu   sync.Mutex // guards the fields below, and the compiler
	made map[string]*jsonschema.Schema
	seen map[string]int // by path and kind of answer
}

// newContract reads the document. Members of answers that it does not name are refused,
// although clients must bear them.
func newContract(t testing.TB) *contract {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(storeapi.OpenAPI))
	if err != nil {
		t.Fatal(err)
	}
	c := &contract{compiler: jsonschema.NewCompiler(), made: map[string]*jsonschema.Schema{}, seen: map[string]int{}}
	if err := json.Unmarshal(storeapi.OpenAPI, &c.document); err != nil {
		t.Fatal(err)
	}
	schemas := value.(map[string]any)["components"].(map[string]any)["schemas"].(map[string]any)
	for _, schema := range schemas {
		if s := schema.(map[string]any); s["type"] == "object" {
			s["additionalProperties"] = false
		}
	}
	c.compiler.AssertFormat()
	c.compiler.AssertContent()
	if err := c.compiler.AddResource("api.json", value); err != nil {
		t.Fatal(err)
	}
	return c
}

// check reports whether a value is as a schema of the document says.
func (c *contract) check(schema map[string]any, text []byte) error {
	name, _ := schema["$ref"].(string)
	if name == "" {
		return nil // any object
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[name] == nil {
		if c.made[name], err = c.compiler.Compile("api.json" + name); err != nil {
			return err
		}
	}
	return c.made[name].Validate(value)
}

// exchange checks a request and its answer. A request that is answered with a 200 must be one
// of the document, too.
func (c *contract) exchange(method, path string, request []byte, status int, kind string, answer []byte) error {
	operation, ok := c.Paths[path][strings.ToLower(method)]
	if !ok {
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			return fmt.Errorf("%s %s is not in the document", method, path)
		}
		return c.check(map[string]any{"$ref": "#/components/schemas/Problem"}, answer)
	}
	c.mu.Lock()
	c.seen[fmt.Sprint(path, " ", status == http.StatusOK)]++
	c.mu.Unlock()
	if status != http.StatusOK {
		if kind != "application/problem+json" {
			return fmt.Errorf("%s %s: %d with %s", method, path, status, kind)
		}
		return c.check(map[string]any{"$ref": "#/components/schemas/Problem"}, answer)
	}
	if operation.RequestBody != nil {
		if err := c.check(operation.RequestBody.Content["application/json"].Schema, request); err != nil {
			return fmt.Errorf("the request %s of %s: %w", request, path, err)
		}
	}
	if err := c.check(operation.Responses["200"].Content[kind].Schema, answer); err != nil {
		return fmt.Errorf("the answer %s of %s: %w", answer, path, err)
	}
	return nil
}

// checked is a transport that checks each exchange.
type checked struct {
	t        testing.TB
	contract *contract
	next     http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *checked) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	response, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close() // it was read
	response.Body = io.NopCloser(bytes.NewReader(answer))
	if err := c.contract.exchange(r.Method, r.URL.Path, body, response.StatusCode, response.Header.Get("Content-Type"), answer); err != nil {
		c.t.Errorf("%v", err)
	}
	return response, nil
}

// The document is one that other tools read: every operation has an id, a summary and a tag,
// every schema is used, every reference is there, and each schema compiles.
func TestOpenAPIDocumentIsWellFormed(t *testing.T) {
	t.Parallel()
	c := newContract(t)
	if !strings.HasPrefix(c.OpenAPI, "3.1.") {
		t.Errorf("version %q", c.OpenAPI)
	}
	var ids []string
	for path, operations := range c.Paths {
		for method, o := range operations {
			if o.OperationID == "" || slices.Contains(ids, o.OperationID) || o.Summary == "" || len(o.Tags) != 1 {
				t.Errorf("%s %s: %+v", method, path, o)
			}
			ids = append(ids, o.OperationID)
			if o.Responses["default"].Ref != "#/components/responses/Problem" || (method == "post") != (o.RequestBody != nil) {
				t.Errorf("%s %s has no problem, or no body", method, path)
			}
		}
	}
	for name := range c.Components.Schemas {
		if !bytes.Contains(storeapi.OpenAPI, fmt.Appendf(nil, `"#/components/schemas/%s"`, name)) {
			t.Errorf("nothing uses the schema %s", name)
		}
		if _, err := c.compiler.Compile("api.json#/components/schemas/" + name); err != nil {
			t.Errorf("%v", err)
		}
	}
}
