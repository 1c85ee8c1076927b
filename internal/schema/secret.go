package schema

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// HiddenText replaces a secret.
const HiddenText = "[hidden]"

// minHidden is the minimum length of a text that a Redactor looks for. A shorter
// text is part of too many words.
const minHidden = 4

// Secret is a text that is never shown. Formatting, printing, encoding or logging
// it gives its public form instead. The zero Secret is empty.
type Secret struct {
	value *string // a pointer, because fmt does not follow one where it cannot call Format
	shown string
}

// NewSecret returns a secret that is hidden completely.
func NewSecret(value string) Secret { return Secret{&value, HiddenText} }

// NewAddress returns a secret that is a URL or a list of settings such as
// "host=db password=x". Only its passwords are hidden.
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

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.value == nil }

// String returns the public form.
func (s Secret) String() string { return s.shown }

// Format implements fmt.Formatter. Every verb prints the public form.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(f, "%q", s.shown)
		return
	}
	fmt.Fprint(f, s.shown)
}

// MarshalText implements encoding.TextMarshaler, for YAML and other encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown), nil }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.shown) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown) }

// Redactor replaces secrets in texts from other sources, such as driver errors.
// The zero Redactor knows no secrets.
type Redactor struct {
	pairs    map[string]string // secrets and their public forms
	replacer *strings.Replacer // built from pairs; nil until it is needed
}

// Text returns text with every secret replaced. It is safe for concurrent use
// after the configuration has been read.
func (r *Redactor) Text(text string) string {
	if r == nil || r.replacer == nil {
		return text
	}
	return r.replacer.Replace(text)
}

// hide adds a secret in all forms that a message may contain.
func (r *Redactor) hide(secret string) { r.replace(secret, HiddenText) }

// replace sets the public form of a secret.
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
	// Longest first, because one secret may be part of another.
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

// Secret reads a text that is never shown.
func (v Value) Secret(target *Secret) {
	if v.Unshown(target) {
		v.exposes("", 0)
	}
}

// Unshown is Secret for a text that need not be a secret. It reports whether the text is
// in the file itself, without a reference.
func (v Value) Unshown(target *Secret) (plain bool) {
	r, ok := v.secretText()
	if !ok {
		return false
	}
	v.Hidden.hide(r.text)
	for _, part := range r.parts {
		v.Hidden.hide(r.text[part.from:part.to])
	}
	v.Hidden.hideCredentials(r.text)
	*target = NewSecret(r.text)
	return len(r.parts) == 0
}

// hideCredentials hides what follows the scheme in the value of an Authorization
// header, and the password in the credentials of the scheme Basic. A server may
// quote either without the scheme.
func (r *Redactor) hideCredentials(header string) {
	scheme, credentials, ok := strings.Cut(strings.TrimSpace(header), " ")
	if !ok {
		return
	}
	credentials = strings.TrimSpace(credentials)
	r.hide(credentials)
	if !strings.EqualFold(scheme, "Basic") {
		return
	}
	if plain, err := base64.StdEncoding.DecodeString(credentials); err == nil {
		_, password, _ := strings.Cut(string(plain), ":")
		r.hide(password)
	}
}

// Address reads a URL or a list of settings that may contain passwords.
func (v Value) Address(target *Secret) {
	r, ok := v.secretText()
	if !ok {
		return
	}
	v.address(target, r)
}

// address sets target to an address, and returns its public form.
func (v Value) address(target *Secret, r resolved) (shown string) {
	shown, passwords := hidePasswords(r.text)
	if r.hasPlainPassword() {
		v.exposes("", 0)
	}
	v.Hidden.replace(r.text, shown)
	for _, password := range passwords {
		v.Hidden.hide(password)
	}
	for _, span := range r.parts {
		if part := r.text[span.from:span.to]; !strings.Contains(shown, part) && part != r.text {
			v.Hidden.hide(part)
		}
	}
	*target = Secret{&r.text, shown}
	return shown
}

// Target reads a URL to which messages are sent. Such a URL may have a secret
// anywhere behind its host, so its query is hidden, and so are the references in
// its path.
func (v Value) Target(target *Secret) {
	r, ok := v.secretText()
	if !ok {
		return
	}
	shown := v.address(target, r)
	if !strings.Contains(shown, "://") {
		return
	}
	path, end := pathOfURL(r.text)
	if end < len(r.text) {
		v.Hidden.hide(r.text[end+1:])
	}
	begin := strings.Index(r.text, "://") + len("://")
	at := begin + max(strings.LastIndexByte(r.text[begin:path], '@'), 0)
	authority, _ := pathOfURL(shown)
	public, done := shown[:authority], path
	for _, part := range r.parts {
		if at > begin && part.from < at && part.to > begin { // a user name may be a token
			v.Hidden.hide(r.text[max(part.from, begin):min(part.to, at)])
			public = r.text[:begin] + HiddenText + r.text[at:path]
		}
	}
	for _, part := range r.parts {
		from := max(part.from, path)
		for from < part.to && r.text[from] == '/' {
			from++
		}
		if from >= part.to {
			continue
		}
		v.Hidden.hide(r.text[from:part.to])
		if from < end {
			public += r.text[done:from] + HiddenText
			done = min(part.to, end)
		}
	}
	public += r.text[done:end]
	if end < len(r.text) {
		public += "?" + HiddenText
	}
	v.Hidden.replace(r.text, public)
	*target = Secret{&r.text, public}
}

// pathOfURL returns where the path of a URL begins and ends.
func pathOfURL(address string) (begin, end int) {
	begin = strings.Index(address, "://") + len("://")
	if i := strings.IndexAny(address[begin:], "/?#"); i >= 0 {
		begin += i
	} else {
		begin = len(address)
	}
	if i := strings.IndexAny(address[begin:], "?#"); i >= 0 {
		return begin, begin + i
	}
	return begin, len(address)
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

// hidePasswords returns an address without its passwords. It also returns the
// passwords, both as written and decoded. An address that cannot be parsed is
// hidden completely, because the end of a password in it is unknown.
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
	if strings.Contains(tail, "@") { // the password contains an unescaped / or ?
		last := strings.LastIndexByte(rest, '@')
		_, password, _ := strings.Cut(rest[:last], ":")
		return HiddenText, []string{password}
	}
	if user, password, ok := strings.Cut(authority[:max(at, 0)], ":"); ok {
		authority = user + ":" + HiddenText + authority[at:]
		passwords = append(appendPassword(passwords, password), basicAuth(user, password))
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

// basicAuth returns the form in which HTTP sends a user and a password of a URL.
func basicAuth(user, password string) string {
	plain := func(encoded string) string {
		if text, err := url.PathUnescape(encoded); err == nil {
			return text
		}
		return encoded
	}
	return base64.StdEncoding.EncodeToString([]byte(plain(user) + ":" + plain(password)))
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

// settingValue reads one value, either quoted or up to a blank. It also returns
// the length of its text.
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
