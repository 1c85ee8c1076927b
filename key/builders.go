package key

import "strconv"

// StateChange returns the id of one change of an entity: which entity, what
// happened to it, and the version of the entity that it made. It is the
// composite of two strings and a number, the same that [All] finds in a JSON
// body with these three. It is "" if entity or event is empty; stores refuse
// that id.
func StateChange(entity, event string, version uint64) string {
	return Composite(
		string(AppendString(nil, entity)),
		string(AppendString(nil, event)),
		string(AppendNumber(nil, strconv.FormatUint(version, 10))))
}

// Action returns the id of a business action, such as a charge, under the id
// that the business gave the transaction. It is the composite of two strings,
// and "" if either is empty; stores refuse that id.
func Action(kind, transactionID string) string {
	return Composite(string(AppendString(nil, kind)), string(AppendString(nil, transactionID)))
}

// Composite returns the id of several parts in their order, each of which is an
// id by itself: a string, or what another builder or an Append function gave.
// No two lists of parts have one composite. It is "" if a part is empty or
// there is none; stores refuse that id.
func Composite(parts ...string) string {
	for _, part := range parts {
		if part == "" {
			return ""
		}
	}
	return string(AppendComposite(nil, parts...))
}

// Content returns the id of a JSON document's content. See [AppendContent].
func Content(body []byte) (string, error) {
	id, err := AppendContent(nil, body)
	return string(id), err
}
