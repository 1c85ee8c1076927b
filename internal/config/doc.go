// Package config reads configuration files.
package config
