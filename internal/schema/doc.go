// Package schema reads configuration files. A mapping of fields is declared
// once: the parser, the defaults, the error messages, the JSON Schema and the
// reference page all follow from the declaration. Secrets that it reads are
// never shown.
package schema
