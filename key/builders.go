package key

import "strconv"

// StateChange returns the id of a change of an entity, made of the entity, the event, and the
// version of the entity after the event. It is the composite of two strings and a number, as
// [All] finds it in a JSON body with these three values. It is "" if entity or event is empty;
// stores refuse that id.
func StateChange(entity, event string, version uint64) string {
	return Composite(
		string(AppendString(nil, entity)),
		string(AppendString(nil, event)),
		string(AppendNumber(nil, strconv.FormatUint(version, 10))))
}

// Action returns the id of a business action, such as a charge, from the kind
// of the action and the transaction id of the business. It is the composite of
// two strings. It is "" if either is empty; stores refuse that id.
func Action(kind, transactionID string) string {
	return Composite(string(AppendString(nil, kind)), string(AppendString(nil, transactionID)))
}

// Composite returns the id of several parts in their order. Each part is an id
// by itself: a string, or the result of another builder or an Append function.
// Different lists of parts have different composites. It is "" if a part is
// empty or there are no parts; stores refuse that id.
func Composite(parts ...string) string {
	for _, part := range parts {
		if part == "" {
			return ""
		}
	}
	return string(AppendComposite(nil, parts...))
}

// Content returns the id of the content of a JSON document. See
// [AppendContent].
func Content(body []byte) (string, error) {
	id, err := AppendContent(nil, body)
	return string(id), err
}
