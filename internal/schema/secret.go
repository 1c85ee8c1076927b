package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// hiddenText stands where a secret was.
const HiddenText = "[hidden]"

// minHidden is the shortest text that a Redactor looks for. A shorter one is
// part of too many words.
const minHidden = 4

// Secret is a text that is never shown: whoever formats, prints, encodes or
// logs it gets what may be shown in its place. The zero Secret is none.
type Secret struct {
	value *string // a pointer, which fmt does not follow where it cannot call Format
	shown string
}

// NewSecret returns a secret of which nothing may be shown.
func NewSecret(value string) Secret { return Secret{&value, HiddenText} }

// NewAddress returns a secret that is a URL or a list of settings such as
// "host=db password=x": all of it may be shown but for its passwords.
func NewAddress(value string) Secret {
	shown, _ := hidePasswords(value)
	return Secret{&value, shown}
}

// Reveal returns the secret itself.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is none.
func (s Secret) IsZero() bool { return s.value == nil }

// String returns what may be shown.
func (s Secret) String() string { return s.shown }

// Format implements fmt.Formatter: every verb shows what may be shown.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(f, "%q", s.shown)
		return
	}
	fmt.Fprint(f, s.shown)
}

// MarshalText implements encoding.TextMarshaler, for YAML and others.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown), nil }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.shown) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown) }

// Redactor replaces secrets in texts that others wrote, such as the errors of
// a driver. The zero Redactor knows none.
type Redactor struct {
	pairs    map[string]string // what is hidden, and what is shown for it
	replacer *strings.Replacer // of pairs; nil until it is needed
}

// Text returns the text with every secret replaced. Calls may run at once,
// once a configuration is read.
func (r *Redactor) Text(text string) string {
	if r == nil || r.replacer == nil {
		return text
	}
	return r.replacer.Replace(text)
}

// hide adds a secret, in all the forms in which a message may show it.
func (r *Redactor) hide(secret string) { r.replace(secret, HiddenText) }

// replace has shown stand for a secret.
func (r *Redactor) replace(secret, shown string) {
	if len(secret) < minHidden || secret == shown {
		return
	}
	if r.pairs == nil {
		r.pairs = map[string]string{}
	}
	quoted := strconv.Quote(secret)
	_, userinfo, _ := strings.Cut(url.UserPassword("", secret).String(), ":")
	for _, form := range []string{secret, quoted[1 : len(quoted)-1], url.QueryEscape(secret), url.PathEscape(secret), userinfo} {
		if form != shown {
			r.pairs[form] = shown
		}
	}
	// The longest first: a secret may be part of another.
	forms := make([]string, 0, len(r.pairs))
	for form := range r.pairs {
		forms = append(forms, form)
	}
	slices.SortFunc(forms, func(a, b string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	})
	list := make([]string, 0, 2*len(forms))
	for _, form := range forms {
		list = append(list, form, r.pairs[form])
	}
	r.replacer = strings.NewReplacer(list...)
}

// secret reads a text that is never shown.
func (v Value) Secret(target *Secret) {
	if r, ok := v.secretText(); ok {
		v.Hidden.hide(r.text)
		*target = NewSecret(r.text)
	}
}

// address reads a URL or a list of settings, in which passwords may stand.
func (v Value) Address(target *Secret) {
	r, ok := v.secretText()
	if !ok {
		return
	}
	shown, passwords := hidePasswords(r.text)
	v.Hidden.replace(r.text, shown)
	for _, password := range passwords {
		v.Hidden.hide(password)
	}
	for _, part := range r.parts {
		if !strings.Contains(shown, part) && part != r.text {
			v.Hidden.hide(part)
		}
	}
	*target = Secret{&r.text, shown}
}

func (v Value) secretText() (resolved, bool) {
	written, ok := v.written("a text")
	if !ok {
		return resolved{}, false
	}
	r, ok := v.resolve(written)
	if ok && r.text == "" {
		v.Wrong("it is empty: write a value, or leave the field out")
	}
	return r, ok && r.text != ""
}

// hidePasswords returns an address without its passwords, and these as they
// stand there and as they are meant. Of an address that cannot be understood
// nothing is shown: where a password ends in it is anybody's guess.
func hidePasswords(address string) (shown string, passwords []string) {
	scheme, rest, isURL := strings.Cut(address, "://")
	if !isURL {
		return hideSettings(address)
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	at := strings.LastIndexByte(authority, '@')
	if strings.Contains(tail, "@") { // an unescaped / or ? in the password
		last := strings.LastIndexByte(rest, '@')
		_, password, _ := strings.Cut(rest[:last], ":")
		return HiddenText, []string{password}
	}
	if user, password, ok := strings.Cut(authority[:max(at, 0)], ":"); ok {
		authority = user + ":" + HiddenText + authority[at:]
		passwords = appendPassword(passwords, password)
	}
	query := strings.IndexByte(tail, '?')
	if query < 0 {
		return scheme + "://" + authority + tail, passwords
	}
	settings := strings.Split(tail[query+1:], "&")
	for i, setting := range settings {
		if name, password, ok := strings.Cut(setting, "="); ok && isPassword(name) {
			settings[i] = name + "=" + HiddenText
			passwords = appendPassword(passwords, password)
		}
	}
	return scheme + "://" + authority + tail[:query+1] + strings.Join(settings, "&"), passwords
}

func appendPassword(passwords []string, encoded string) []string {
	passwords = append(passwords, encoded)
	if plain, err := url.PathUnescape(encoded); err == nil && plain != encoded {
		passwords = append(passwords, plain)
	}
	return passwords
}

func isPassword(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "pass") && !strings.Contains(name, "passfile") || strings.Contains(name, "secret") || strings.Contains(name, "token")
}

// hideSettings is hidePasswords for "host=db user=app password='a b'".
func hideSettings(text string) (shown string, passwords []string) {
	var out strings.Builder
	for rest := text; ; {
		blank := len(rest) - len(strings.TrimLeft(rest, " \t\r\n"))
		out.WriteString(rest[:blank])
		if rest = rest[blank:]; rest == "" {
			return out.String(), passwords
		}
		name, after, ok := strings.Cut(rest, "=")
		if !ok || strings.ContainsAny(strings.TrimSpace(name), " \t\r\n'") {
			return HiddenText, append(passwords, text)
		}
		name += "=" + after[:len(after)-len(strings.TrimLeft(after, " \t\r\n"))]
		after = strings.TrimLeft(after, " \t\r\n")
		plain, length, ok := settingValue(after)
		if !ok {
			return HiddenText, append(passwords, text)
		}
		out.WriteString(name)
		if isPassword(name) {
			out.WriteString(HiddenText)
			passwords = append(passwords, plain, strings.Trim(after[:length], "'"))
		} else {
			out.WriteString(after[:length])
		}
		rest = after[length:]
	}
}

// settingValue reads one value, in quotes or up to a blank, and returns how
// long its text is.
func settingValue(text string) (plain string, length int, ok bool) {
	var out strings.Builder
	quoted := strings.HasPrefix(text, "'")
	i := 0
	if quoted {
		i = 1
	}
	for ; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			out.WriteByte(text[i])
		case quoted && c == '\'':
			return out.String(), i + 1, true
		case !quoted && strings.IndexByte(" \t\r\n", c) >= 0:
			return out.String(), i, true
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), i, !quoted
}
