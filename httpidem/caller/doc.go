// Package caller finds out who sends an HTTP request, for [httpidem.Options].Scope.
//
// Each function returns a scope: the name of the caller, and never the credential itself.
// A credential that was renewed names the same caller, so that a repeated request finds
// its first answer. A caller whose credential ended gets 401 or 403 and no kept answer.
//
// The returned functions are safe for concurrent use. Their errors are
// [*httpidem.Denied]. Requests without a key are not checked: the service must check them
// itself.
package caller
