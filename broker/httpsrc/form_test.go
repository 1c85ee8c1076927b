package httpsrc

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

func TestAFormIsAJSONDocument(t *testing.T) {
	t.Parallel()
	const form = "application/x-www-form-urlencoded"
	s := open(t, Options{})
	for name, c := range map[string]struct {
		contentType, body, want string
		status                  int
	}{
		"fields":             {form, "id=7&type=paid", `{"id":"7","type":"paid"}`, 200},
		"order":              {form, "b=1&a=2&c=3", `{"b":"1","a":"2","c":"3"}`, 200},
		"repeated":           {form, "tag=a&id=7&tag=b&tag=", `{"tag":["a","b",""],"id":"7"}`, 200},
		"escapes":            {form, "a+b=c+d&e%3D=f%26g%0A%22%5C&h=%C3%A4%F0%9F%98%80", `{"a b":"c d","e=":"f&g\n\"\\","h":"ä😀"}`, 200},
		"no escape of HTML":  {form, "a=<b>%26", `{"a":"<b>&"}`, 200},
		"NUL":                {form, "a=%00", `{"a":"\u0000"}`, 200},
		"brackets":           {form, "a[0][id]=1&a[]=2", `{"a[0][id]":"1","a[]":"2"}`, 200},
		"a document inside":  {form, "payload=%7B%22id%22%3A7%7D", `{"payload":"{\"id\":7}"}`, 200},
		"name alone":         {form, "a&b=1&=2", `{"a":"","b":"1","":"2"}`, 200},
		"empty fields":       {form, "&&a=1&\r\n", `{"a":"1"}`, 200},
		"semicolon":          {form, "a=1;b=2", `{"a":"1;b=2"}`, 200},
		"equal signs":        {form, "a=b=c", `{"a":"b=c"}`, 200},
		"charset":            {form + "; charset=UTF-8", "a=1", `{"a":"1"}`, 200},
		"capitals":           {"Application/X-WWW-Form-URLEncoded", "a=1", `{"a":"1"}`, 200},
		"not closed":         {form + "; charset", "a=1", `{"a":"1"}`, 200},
		"JSON, as curl says": {form, ` {"a":"b=c"}`, ` {"a":"b=c"}`, 200},
		"list, as curl says": {form, `["="]`, `["="]`, 200},
		"XML, as curl says":  {form, `<a b="c"/>`, `<a b="c"/>`, 200},
		"text, as curl says": {form, "hello", "hello", 200},
		"nothing":            {form, "", "", 200},
		"another type":       {"text/plain", "a=1", "a=1", 200},
		"no type":            {"", "a=1", "a=1", 200},
		"other charset":      {form + "; charset=iso-8859-1", "a=%E9", "", 415},
		"not UTF-8":          {form, "a=%E9", "", 400},
		"name not UTF-8":     {form, "%E9=a", "", 400},
		"half an escape":     {form, "a=%4", "", 400},
		"no escape":          {form, "a=100%", "", 400},
		"many fields":        {form, strings.Repeat("a=1&", mostFields), `{"a":[` + strings.Repeat(`"1",`, mostFields-1) + `"1"]}`, 200},
		"too many fields":    {form, strings.Repeat("a=1&", mostFields+1), "", 413},
	} {
		header := http.Header{}
		if c.contentType != "" {
			header.Set("Content-Type", c.contentType)
		}
		resp, m := send(t, s, header, []byte(c.body), false)
		if resp.StatusCode != c.status || (m == nil) != (c.status != 200) {
			t.Errorf("%s: %d, want %d", name, resp.StatusCode, c.status)
		}
		if m == nil {
			continue
		}
		if string(m.Body) != c.want {
			t.Errorf("%s: %s, want %s", name, m.Body, c.want)
		}
		if got, _ := m.Header("content-type"); (string(got) == jsonType) != (c.want != c.body) {
			t.Errorf("%s: the message has Content-Type %q", name, got)
		}
	}
}

// FuzzFormDocument compares a document with the reader of forms in net/url.
func FuzzFormDocument(f *testing.F) {
	for _, seed := range []string{"a=1&a=2&b=%20+", "=", "&&", "%", "a=%00&\u00e4=\u2028", "%ff=1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, form string) {
		document, err := formDocument([]byte(form))
		if err != nil {
			return
		}
		var got map[string]any
		if err := json.Unmarshal(document, &got); err != nil {
			t.Fatalf("%q became %s: %v", form, document, err)
		}
		if strings.ContainsAny(form, ";\r\n") { // net/url refuses the first, and keeps the others
			return
		}
		want := map[string]any{}
		parsed, err := url.ParseQuery(form)
		if err != nil {
			t.Fatalf("%q was read, and net/url says %v", form, err)
		}
		for name, values := range parsed {
			want[name] = values[0]
			if len(values) > 1 {
				list := []any{}
				for _, v := range values {
					list = append(list, v)
				}
				want[name] = list
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q became %s, want %v", form, document, want)
		}
	})
}

// Control characters take six bytes in JSON.
func TestTheDocumentOfAFormIsWithinTheBoundOfABody(t *testing.T) {
	t.Parallel()
	s := open(t, Options{MaxBody: 30})
	header := http.Header{"Content-Type": {formType}}
	if resp, message := send(t, s, header, []byte("a=\x01\x01"), false); resp.StatusCode != http.StatusOK || message == nil {
		t.Errorf("a short one: %s", resp.Status)
	}
	if resp, message := send(t, s, header, []byte("a=\x01\x01\x01\x01\x01\x01"), false); resp.StatusCode != http.StatusRequestEntityTooLarge || message != nil {
		t.Errorf("a long one: %s", resp.Status)
	}
}
