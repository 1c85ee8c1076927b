package httpsrc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/semel-dev/semel"
)

const (
	formType = "application/x-www-form-urlencoded"
	// mostFields is how many fields a form may have. Each field takes memory of its own.
	mostFields = 10_000
)

// isForm reports whether a body is a form. The type alone does not tell: curl gives it to
// every body.
func isForm(contentType string, body []byte) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	if !strings.EqualFold(strings.TrimSpace(kind), formType) || !bytes.ContainsRune(body, '=') {
		return false
	}
	return !strings.ContainsRune(`{["<`, rune(bytes.TrimLeft(body, " \t\r\n")[0])) // no form has these unescaped
}

// unform makes a form a JSON document, or returns the answer that refuses it.
func unform(m *semel.Message) *answer {
	contentType, _ := m.Header("Content-Type")
	if !isForm(string(contentType), m.Body) {
		return nil
	}
	if _, params, err := mime.ParseMediaType(string(contentType)); err == nil {
		switch charset := params["charset"]; strings.ToLower(charset) {
		case "", "utf-8", "utf8", "us-ascii", "ascii":
		default:
			return &answer{status: http.StatusUnsupportedMediaType, text: fmt.Sprintf("a form in the charset %.100q cannot be read: send it in UTF-8", charset)}
		}
	}
	document, err := formDocument(m.Body)
	switch {
	case errors.Is(err, errManyFields):
		return &answer{status: http.StatusRequestEntityTooLarge, text: err.Error()}
	case err != nil:
		return &answer{status: http.StatusBadRequest, text: err.Error()}
	}
	m.Body = document
	for i := range m.Headers {
		if m.Headers[i].Name == "content-type" {
			m.Headers[i].Value = []byte(jsonType)
		}
	}
	return nil
}

var errManyFields = fmt.Errorf("the form has more than %d fields", mostFields)

// formDocument returns the JSON object of a form. Its members have the order in which their
// names came first. A name that came several times has a list of its values.
func formDocument(form []byte) ([]byte, error) {
	var names []string
	values := map[string][]string{}
	count := 0
	for field := range strings.SplitSeq(string(form), "&") {
		if field = strings.Trim(field, "\r\n"); field == "" {
			continue
		}
		if count++; count > mostFields {
			return nil, errManyFields
		}
		escapedName, escapedValue, _ := strings.Cut(field, "=")
		name, err := unescape(escapedName)
		if err != nil {
			return nil, err
		}
		value, err := unescape(escapedValue)
		if err != nil {
			return nil, err
		}
		if _, known := values[name]; !known {
			names = append(names, name)
		}
		values[name] = append(values[name], value)
	}
	var document bytes.Buffer
	to := json.NewEncoder(&document)
	to.SetEscapeHTML(false)
	add := func(value any, after byte) error {
		err := to.Encode(value)
		document.Truncate(document.Len() - 1) // the line break of Encode
		document.WriteByte(after)
		return err
	}
	document.WriteByte('{')
	for _, name := range names {
		value := any(values[name])
		if list := values[name]; len(list) == 1 {
			value = list[0]
		}
		if err := errors.Join(add(name, ':'), add(value, ',')); err != nil {
			return nil, err
		}
	}
	if len(names) > 0 {
		document.Truncate(document.Len() - 1) // the last comma
	}
	document.WriteByte('}')
	return document.Bytes(), nil
}

// unescape decodes a name or a value of a form.
func unescape(escaped string) (string, error) {
	text, err := url.QueryUnescape(escaped)
	if err != nil {
		return "", fmt.Errorf("the form cannot be read: %w", err)
	}
	if !utf8.ValidString(text) {
		return "", errors.New("the form is not in UTF-8")
	}
	return text, nil
}
