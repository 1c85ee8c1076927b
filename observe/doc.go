// Package observe tells people what guards and pipelines do: in a log, and with
// the packages below it in metrics.
//
//   - [Log] writes incidents with log/slog, and few lines of many alike.
//   - promobserve counts for Prometheus, otelobserve with OpenTelemetry. Who
//     imports one does not compile the other.
//   - [All] makes one observer of several.
//
// docs/observability.md has the metrics and what to do when they rise.
package observe
