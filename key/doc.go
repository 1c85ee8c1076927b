// Package key finds, in a message, what makes two deliveries of it the same.
//
// A [Rule] says where to look: a place in a JSON body (".event_id"), the whole
// line ("line"), the canonical content ("hash(.)"), a header, a template, a
// list of these. Applied to a message it gives a [semel.Key]. A [Finder] is the
// part of it that does the work on JSON, in one pass and without allocation;
// programs that only have documents use it directly.
//
// # What an id is
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
// string are never an id but a [*MissingError]; objects and arrays are a
// [*NotScalarError]. Strings are compared as bytes: no Unicode normalisation,
// no trimming, no change of case, and invalid UTF-8 stays as it is instead of
// becoming U+FFFD, which would merge ids that differ.
//
// Two members of one name in an object: the last one counts, at every level,
// as when encoding/json decodes the document into an any.
package key
