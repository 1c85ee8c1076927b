// Package diagnose finds what is wrong, for people: the meaning and the remedy of a server's
// error; the part of an error that any client may see; whether work stands still; the content of
// a body that no key rule can read; the process that holds a store or a file; and the closest
// name to an unknown one.
package diagnose
