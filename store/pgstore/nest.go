package pgstore

import "regexp"

// mainPart finds where a statement goes on behind its WITH: there alone a line
// begins with a verb.
var mainPart = regexp.MustCompile(`(?m)^(INSERT|UPDATE|DELETE|SELECT) `)

// nested makes a statement part of another one, which goes on with what the
// statement returns under a name. PostgreSQL wants all that changes rows at the
// top, so that the parts of WITH are not nested with it.
func nested(statement, name, goesOn string) string {
	main := mainPart.FindStringIndex(statement)[0]
	with := "WITH "
	if main > 0 {
		with = statement[:main] + ", "
	}
	return with + name + " AS (" + statement[main:] + ") " + goesOn
}
