// Package config reads configuration files and what users write in them and in
// flags: durations, counts, sizes, names. It connects to nothing. Everything
// that is wrong with a file is reported at once, each with its place; secrets
// are hidden wherever a value or an error is shown.
package config
