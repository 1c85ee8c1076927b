package schema

import "io/fs"

// Exposed is a secret that others than the user of the program may read.
type Exposed struct {
	Path string // of the field
	At   Place
	// File is the file of a ${file:…} that other users can read, and Mode its mode. File
	// is "" if the configuration itself has the secret as plain text.
	File string
	Mode fs.FileMode
}

// exposes records a field that has a secret as plain text.
func (v Value) exposes(file string, mode fs.FileMode) {
	v.Exposed = append(v.Exposed, Exposed{v.Path, v.at, file, mode})
}

// hasPlainPassword reports whether an address has a password that no reference brings.
// It compares the passwords of the address with two different values of the references:
// a password that stays the same is in the file.
func (r resolved) hasPlainPassword() bool {
	_, one := hidePasswords(r.with("1"))
	_, two := hidePasswords(r.with("2"))
	for i := range min(len(one), len(two)) {
		if one[i] != "" && one[i] == two[i] {
			return true
		}
	}
	return false
}

// with returns the text with another value for all references.
func (r resolved) with(value string) string {
	text, from := "", 0
	for _, part := range r.parts {
		text += r.text[from:part.from] + value
		from = part.to
	}
	return text + r.text[from:]
}
