// Package schema reads configuration files. Each mapping of fields is declared
// once. The parser, the defaults, the error messages, the JSON Schema and the
// reference page all follow from that declaration. Secrets are never shown.
package schema
