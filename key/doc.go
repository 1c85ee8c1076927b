// Package key finds the id of a message, which all deliveries of the message
// share.
//
// A [Rule] says where the id is: a place in a JSON body (".event_id"), the
// whole line ("line"), the canonical content ("hash(.)"), a header, a template,
// or a list of these. A rule that is applied to a message gives a [semel.Key].
// A [Finder] does the work on JSON, in one pass and without allocation.
// Programs that only have documents may use it directly.
//
// # Ids
//
// An id is bytes, and the bytes tell type and value apart: the string "42" and
// the number 42 are two ids.
//
//	string        its bytes after escapes, so that a person can type the id;
//	              if they begin with NUL, NUL 's' and the bytes
//	number        NUL 'n' and its text: 1, 1.0 and 1e0 are three ids
//	true, false   NUL 't', NUL 'f'
//	composite     NUL 'c' and, for each part, the length of the encoded part
//	              (unsigned varint) and the encoded part
//	content       NUL 'h' and the SHA-256 of the canonical JSON
//	bytes         NUL 'b' and the SHA-256 of the bytes
//	string with   NUL 'u' and its canonical JSON text, because half of a
//	a lone half   surrogate pair has no bytes of its own: whatever bytes were
//	of a pair     chosen, another string could have them
//
// A composite of one part is that part. A missing member, null and the empty
// string are not ids: they give a [*MissingError]. Objects and arrays give a
// [*NotScalarError]. Strings are compared as bytes, without Unicode
// normalisation, trimming or change of case, unless the rule asks for it. Invalid UTF-8 stays as it is.
// Replacing it by U+FFFD would merge different ids.
//
// If an object has two members of the same name, the last one counts, at every
// level. encoding/json does the same when it decodes into an any.
package key
