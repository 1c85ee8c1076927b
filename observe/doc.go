// Package observe reports the events of guards and pipelines. It writes a log,
// and its subpackages keep metrics and make traces.
//
//   - [Log] writes incidents with log/slog, and limits lines that are alike.
//   - promobserve counts for Prometheus, and otelobserve makes spans for OpenTelemetry.
//     Importing one does not compile the other.
//   - [All] combines several observers.
//
// observe/README.md describes the metrics, and docs/observability.md how to set them up.
package observe
