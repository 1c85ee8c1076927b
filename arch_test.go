//go:build !race

package semel_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/semel-dev/semel"

// packageMap has what each package may import besides the standard library. "." is the root package. A package that is not
// listed here is not allowed yet. A name that ends in * stands for all that begin so, unless a wall forbids the import.
var packageMap = map[string][]string{
	".":                {"internal/retry"},
	"key":              {".", "golang.org/x/text/unicode/norm", "internal/decimal"},
	"doctor":           {},
	"filter":           {".", "github.com/dchest/siphash", "internal/invalid"},
	"store/memstore":   {".", "internal/clock", "internal/digest", "internal/table", "internal/invalid"},
	"store/logstore":   {"doctor", ".", "internal/auditlog", "internal/clock", "internal/digest", "store/logstore/internal/digestmap", "internal/run", "vfs", "golang.org/x/sys/unix"},
	"store/storetest":  {"doctor", ".", "store/storetest/internal/register", "test/trytest", "vfs", "test/faultfs", "github.com/anishathalye/porcupine"},
	"store/redisstore": {"doctor", ".", "internal/digest", "github.com/redis/rueidis", "internal/invalid"},
	"store/pgstore": {"doctor",
		".", "internal/pglock", "internal/digest", "internal/invalid", "internal/retry", "store/pgstore/internal/pgschema",
		"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgconn", "github.com/jackc/pgx/v5/pgtype",
		"github.com/jackc/pgx/v5/pgxpool", "github.com/jackc/pgx/v5/stdlib",
	},
	"store/logstore/internal/digestmap": {"."},
	"store/pgstore/internal/pgschema":   {".", "github.com/jackc/pgx/v5"},
	"store/storetest/internal/register": {".", "github.com/anishathalye/porcupine"},
	"httpidem":                          {".", "internal/coding", "internal/invalid", "internal/jsontext", "internal/retry", "internal/structured", "key"},
	"internal/structured":               {},
	"internal/coding":                   {},
	"internal/jsontext":                 {},
	"internal/jsonid":                   {"key"},
	"internal/framing":                  {},
	"internal/envelope":                 {".", "key", "internal/diagnose", "internal/jsontext"},
	"httpidem/pgidem":                   {".", "httpidem", "store/pgstore", "github.com/jackc/pgx/v5"},
	"httpidem/caller":                   {"httpidem", "internal/invalid", "github.com/go-jose/go-jose/v4", "github.com/go-jose/go-jose/v4/jwt"},
	"httpidem/idemcheck":                {"httpidem", "internal/retry"},
	"store/httpstore":                   {".", "internal/jsonid", "internal/retry", "internal/storeapi"},
	"store/tiered":                      {"doctor", ".", "filter", "internal/clock", "internal/invalid", "internal/retry"},
	"pipeline":                          {"filter", "doctor", ".", "internal/eventreason", "key", "internal/auditlog", "internal/coarse", "internal/diagnose", "internal/invalid", "internal/retry", "vfs"},
	"broker/kafka": {"doctor",
		".", "key", "pipeline", "broker/kafka/internal/cluster", "broker/kafka/internal/record", "broker/header", "internal/invalid", "internal/retry",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/kmsg", "github.com/twmb/franz-go/pkg/sasl",
	},
	"broker/kafka/kafkatxn": {"doctor",
		".", "key", "pipeline", "stream", "broker/kafka", "broker/kafka/internal/cluster", "broker/kafka/internal/record",
		"broker/kafka/kafkatxn/internal/repartition", "broker/kafka/kafkatxn/internal/operator", "broker/kafka/kafkatxn/internal/state", "broker/kafka/kafkatxn/internal/keys", "broker/kafka/kafkatxn/internal/marks", "broker/kafka/kafkatxn/internal/watermarks", "broker/kafka/kafkatxn/internal/output", "broker/kafka/kafkatxn/internal/budget", "broker/kafka/kafkatxn/internal/sample", "broker/kafka/kafkatxn/internal/tables", "broker/kafka/kafkatxn/internal/pending",
		"internal/clock", "internal/coarse", "internal/diagnose", "internal/digest", "internal/invalid", "internal/retry", "vfs",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/kmsg",
	},
	"broker/kafka/kafkatxn/internal/operator": {
		".", "key", "pipeline", "stream", "broker/kafka/internal/cluster", "broker/kafka/internal/record",
		"broker/kafka/kafkatxn/internal/budget", "broker/kafka/kafkatxn/internal/fields", "broker/kafka/kafkatxn/internal/keep", "broker/kafka/kafkatxn/internal/keys", "broker/kafka/kafkatxn/internal/output", "broker/kafka/kafkatxn/internal/pending", "broker/kafka/kafkatxn/internal/repartition", "broker/kafka/kafkatxn/internal/state", "broker/kafka/kafkatxn/internal/tables", "broker/kafka/kafkatxn/internal/watermarks", "broker/kafka/kafkatxn/internal/window",
		"internal/coarse", "broker/header", "internal/diagnose", "internal/retry",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/state": {".", "vfs", "github.com/twmb/franz-go/pkg/kgo"},
	"broker/kafka/kafkatxn/internal/state/statetest": {
		"broker/kafka/kafkatxn/internal/state", "test/faultfs", "vfs", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/keep": {
		".", "stream", "broker/kafka/kafkatxn/internal/state", "internal/days", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/window": {
		".", "stream", "broker/kafka/kafkatxn/internal/state", "internal/days", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/repartition": {
		".", "key", "pipeline", "broker/kafka/internal/cluster", "broker/kafka/internal/record", "broker/kafka/kafkatxn/internal/fields", "broker/kafka/kafkatxn/internal/state", "broker/header", "stream",
		"github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/fields": {".", "key", "stream", "broker/kafka/internal/record"},
	"broker/kafka/kafkatxn/internal/keys": {
		".", "broker/kafka/internal/cluster", "broker/kafka/kafkatxn/internal/state", "internal/digest", "internal/run", "internal/table", "vfs", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/watermarks": {
		"stream", "broker/kafka/internal/cluster", "broker/kafka/kafkatxn/internal/state", "github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/output": {
		".", "key", "pipeline", "stream", "broker/kafka/internal/cluster", "broker/kafka/kafkatxn/internal/state",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/marks":  {},
	"broker/kafka/kafkatxn/internal/budget": {},
	"broker/kafka/kafkatxn/internal/tables": {
		".", "stream", "broker/kafka/internal/cluster", "internal/retry", "internal/rows",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/pending": {
		".", "broker/kafka/internal/cluster", "internal/retry",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/kafkatxn/internal/sample": {
		".", "key", "broker/kafka/internal/record", "internal/digest", "github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kgo",
	},
	"broker/kafka/internal/cluster": {
		".", "pipeline", "internal/retry", "github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/kmsg",
	},
	"broker/kafka/internal/record": {".", "key", "pipeline", "broker/header", "github.com/twmb/franz-go/pkg/kgo"},
	"broker/nats":                  {"doctor", ".", "pipeline", "broker/header", "internal/inbox", "internal/invalid", "internal/retry", "github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream"},
	"broker/rabbitmq":              {"doctor", ".", "pipeline", "broker/header", "internal/inbox", "internal/invalid", "internal/retry", "github.com/rabbitmq/amqp091-go"},
	"broker/sqs": {"doctor",
		".", "pipeline", "broker/header", "internal/inbox", "internal/invalid", "internal/retry", "github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/service/sqs",
		"github.com/aws/aws-sdk-go-v2/service/sqs/types", "github.com/aws/smithy-go", "github.com/aws/smithy-go/transport/http",
	},
	"broker/brokertest":       {".", "broker/header", "key", "pipeline", "store/memstore", "internal/retry"},
	"broker/webhook":          {".", "pipeline", "internal/invalid", "internal/structured"},
	"broker/httpsrc":          {"doctor", ".", "key", "pipeline", "broker/httpsrc/provider", "internal/coding", "internal/diagnose", "internal/invalid", "internal/jsontext", "internal/structured", "github.com/klauspost/compress/zstd"},
	"broker/httpsrc/provider": {"internal/invalid", "internal/jsontext"},
	"broker/file": {
		".", "pipeline", "store/logstore", "internal/diagnose", "internal/framing", "internal/invalid", "internal/retry", "vfs",
		"github.com/klauspost/compress/gzip", "github.com/klauspost/compress/zstd", "golang.org/x/sys/unix",
	},
	"broker/postgres": {"doctor",
		".", "internal/outboxrow", "internal/pglock", "key", "outbox", "pipeline", "store/pgstore", "broker/header", "internal/retry",
		"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgconn", "github.com/jackc/pgx/v5/pgxpool",
	},
	"broker/outbox": {"doctor",
		".", "internal/outboxrow", "key", "outbox", "pipeline", "store/pgstore", "internal/invalid", "internal/retry", "github.com/jackc/pglogrepl", "github.com/jackc/pgx/v5",
		"github.com/jackc/pgx/v5/pgconn", "github.com/jackc/pgx/v5/pgproto3", "github.com/jackc/pgx/v5/pgtype", "github.com/jackc/pgx/v5/pgxpool",
	},
	"stream":               {".", "key", "pipeline", "internal/decimal", "internal/invalid"},
	"outbox":               {".", "internal/outboxrow", "key", "store/pgstore", "internal/retry", "github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgtype"},
	"internal/bearer":      {".", "internal/diagnose", "internal/retry"},
	"internal/diagnose":    {"vfs", ".", "key"},
	"internal/auditlog":    {".", "vfs"},
	"internal/clock":       {},
	"internal/eventreason": {},
	"internal/outboxrow":   {".", "store/pgstore"},
	"internal/pglock":      {"github.com/jackc/pgx/v5"},
	"internal/digest":      {".", "github.com/dchest/siphash"},
	"broker/header":        {".", "pipeline"},
	"internal/inbox":       {"pipeline"},
	"internal/invalid":     {"."},
	"internal/peertest":    {".", "pipeline"},
	"test/trytest":         {},
	"test/sampletest":      {},
	"internal/run":         {".", "vfs"},
	"internal/table":       {"."},
	"internal/coarse":      {".", "key"},
	"internal/days":        {},
	"internal/decimal":     {},
	"internal/retry":       {},
	"internal/rows":        {},
	"vfs":                  {"golang.org/x/sys/unix", "golang.org/x/sys/windows"},
	"internal/dedup": {
		".", "key", "filter", "store/logstore",
		"internal/clock", "internal/digest", "internal/diagnose", "internal/framing", "internal/jsontext", "internal/run", "internal/table", "vfs",
		"github.com/dchest/siphash", "golang.org/x/sys/unix",
		"github.com/klauspost/compress/gzip", "github.com/klauspost/compress/zstd",
	},
	"test/services":              {"github.com/jackc/pgx/v5/pgconn", "github.com/twmb/franz-go/pkg/kmsg", "golang.org/x/sys/unix"},
	"test/services/servicestest": {"test/services"},
	"internal/schema":            {".", "internal/diagnose", "github.com/goccy/go-yaml", "github.com/goccy/go-yaml/ast", "github.com/goccy/go-yaml/lexer", "github.com/goccy/go-yaml/parser", "github.com/goccy/go-yaml/token"},
	"internal/config":            {"filter", "doctor", "store/pgstore", ".", "httpidem", "key", "pipeline", "store/tiered", "stream", "internal/diagnose", "internal/envelope", "broker/header", "internal/schema", "github.com/goccy/go-yaml/ast"},
	"internal/expr": {
		".", "key", "pipeline", "internal/decimal", "internal/jsontext", "cel.dev/cel-go/cel", "cel.dev/cel-go/common/ast", "cel.dev/cel-go/common/cost", "cel.dev/cel-go/common/types",
		"cel.dev/cel-go/common/types/ref", "cel.dev/cel-go/common/types/traits", "cel.dev/cel-go/ext", "cel.dev/cel-go/interpreter",
	},
	"internal/kind": {"internal/config", "internal/expr", "internal/kind/*"},
	"internal/kind/*": { // every kind: a new one needs no line
		"doctor", ".", "filter", "key", "pipeline", "stream", "vfs", "broker/*", "store/*",
		"internal/config", "internal/diagnose", "internal/retry", "internal/schema", otherModules,
	},
	"internal/kind/filter":   {"internal/kind/redis"},
	"internal/kind/kafka":    {"internal/bearer"},
	"internal/kind/postgres": {"internal/pglock"},
	"internal/kind/outside":  {"connector", "internal/auditlog", "vfs"},
	"internal/kind/kindtest": {"internal/explain", "internal/kind"},
	"internal/measure":       {".", "internal/eventreason", "pipeline"},
	"observe":                {".", "internal/eventreason", "pipeline", "internal/diagnose", "internal/invalid"},
	"observe/promobserve": {
		".", "pipeline", "internal/measure", "github.com/prometheus/client_golang/prometheus",
	},
	"observe/otelobserve": {
		".", "pipeline", "go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/baggage", "go.opentelemetry.io/otel/codes",
		"go.opentelemetry.io/otel/propagation", "go.opentelemetry.io/otel/trace",
	},
	"internal/admin":    {".", "key", "pipeline", "internal/config", "internal/listen"},
	"internal/listen":   {"internal/config"},
	"internal/storeapi": {"."},
	"internal/serve":    {"doctor", ".", "internal/jsonid", "internal/jsontext", "internal/schema", "internal/storeapi", "github.com/prometheus/client_golang/prometheus"},
	"internal/app": {"filter", "doctor",
		".", "pipeline", "observe", "observe/promobserve", "store/tiered", "internal/diagnose", "internal/admin", "internal/config", "internal/retry", "internal/schema",
		"github.com/prometheus/client_golang/prometheus", "github.com/prometheus/client_golang/prometheus/collectors", "github.com/prometheus/client_golang/prometheus/promhttp",
	},
	"internal/explain": {"doctor", ".", "pipeline", "internal/config", "internal/schema", "stream"},
	"internal/proxy":   {"doctor", ".", "httpidem", "httpidem/caller", "internal/config", "internal/listen", "github.com/prometheus/client_golang/prometheus"},
	"internal/cli": {
		"internal/cli/auditcmd", "internal/cli/configcmd", "internal/cli/dedupcmd", "internal/cli/doctorcmd", "internal/cli/kafkacmd", "internal/cli/keyscmd", "internal/cli/migratecmd", "internal/cli/oncecmd", "internal/cli/parkedcmd", "internal/cli/proxycmd", "internal/cli/runcmd", "internal/cli/servecmd", "internal/cli/statuscmd", "internal/cli/term", "internal/cli/trialcmd", "internal/cli/verifycmd", "internal/cli/whycmd", "internal/config", "internal/dedup", "internal/diagnose", "internal/cli/uicmd",
		"github.com/spf13/cobra", "github.com/spf13/pflag",
	},
	"internal/cli/configcmd": {"doctor",
		".", "internal/cli/open", "internal/cli/term", "internal/config", "internal/diagnose", "internal/explain", "internal/schema",
		"github.com/spf13/cobra",
	},
	"internal/cli/doctorcmd": {"doctor",
		".", "internal/cli/open", "internal/cli/term", "internal/config", "internal/proxy", "internal/schema", "internal/app",
		"github.com/spf13/cobra",
	},
	"internal/cli/kafkacmd": {
		"github.com/twmb/franz-go/pkg/kgo", "broker/kafka", "internal/cli/open", "internal/cli/term", "internal/config",
		"github.com/spf13/cobra",
	},
	"internal/cli/migratecmd": {
		"internal/cli/open", "internal/cli/term", "internal/config", "internal/schema", "internal/app", "store/pgstore",
		"github.com/spf13/cobra",
	},
	"internal/cli/runcmd": {"doctor",
		"internal/admin", "internal/cli/page", ".", "internal/cli/open", "internal/cli/term", "internal/cli/trialcmd", "internal/config", "internal/app",
		"github.com/spf13/cobra",
	},
	"internal/cli/statuscmd": {
		"internal/cli/facts",
		"internal/cli/open", "internal/cli/term", "internal/config", "internal/app", "internal/admin",
		"github.com/spf13/cobra",
	},
	"internal/cli/trialcmd": {"doctor",
		".", "internal/cli/keyrecord", "internal/cli/open", "internal/cli/term", "internal/config", "internal/jsonid", "internal/diagnose", "internal/rows", "internal/schema", "internal/app", "key", "pipeline", "store/memstore", "stream",
		"github.com/spf13/cobra",
	},
	"internal/cli/auditcmd": {"internal/auditlog", "internal/cli/term", "github.com/spf13/cobra"},
	"internal/cli/dedupcmd": {".", "internal/cli/term", "internal/dedup", "internal/diagnose", "internal/schema", "key", "stream", "github.com/spf13/cobra"},
	"internal/cli/keyrecord": {
		".", "httpidem", "internal/cli/term", "internal/config", "internal/jsonid", "internal/schema", "pipeline", "key",
		"github.com/spf13/cobra",
	},
	"internal/cli/facts": {
		".", "internal/admin", "internal/cli/keyrecord", "internal/cli/open", "internal/cli/term", "internal/config", "internal/jsonid", "pipeline", "internal/schema",
	},
	"internal/cli/page": {"doctor",
		".", "internal/admin", "internal/app", "internal/auditlog", "internal/cli/facts", "internal/cli/keyrecord", "internal/cli/open", "internal/cli/term", "internal/config", "internal/explain", "internal/jsonid", "internal/schema", "pipeline",
	},
	"internal/cli/keyscmd": {
		".", "pipeline", "internal/cli/keyrecord", "internal/cli/open", "internal/cli/term", "internal/config", "internal/jsonid", "internal/dedup", "internal/schema", "internal/cli/facts",
		"github.com/spf13/cobra",
	},
	"internal/cli/oncecmd": {
		".", "key", "internal/cli/keyrecord", "internal/cli/open", "internal/cli/term", "internal/days", "internal/diagnose", "internal/retry", "internal/schema",
		"github.com/spf13/cobra", "golang.org/x/sys/unix",
	},
	"internal/cli/open": {"doctor",
		".", "pipeline", "internal/diagnose", "internal/admin", "internal/cli/term", "internal/config", "internal/app", "internal/retry", "internal/schema",
		"github.com/spf13/cobra",
	},
	"internal/cli/parkedcmd": {
		"internal/diagnose", ".", "internal/cli/keyrecord", "internal/cli/open", "internal/cli/term", "internal/config", "internal/jsonid", "internal/schema", "internal/app", "pipeline", "internal/cli/facts",
		"github.com/spf13/cobra",
	},
	"internal/cli/proxycmd": {
		".", "internal/cli/page", "internal/cli/open", "internal/cli/term", "internal/config", "internal/app", "internal/proxy", "internal/schema",
		"github.com/spf13/cobra", "github.com/spf13/pflag",
	},
	"internal/cli/servecmd": {
		".", "httpidem/caller", "internal/app", "internal/cli/page", "internal/cli/open", "internal/cli/term", "internal/config", "internal/explain", "internal/listen", "internal/schema", "internal/serve",
		"github.com/spf13/cobra",
	},
	"internal/cli/term": {
		".", "internal/diagnose", "internal/config", "internal/jsonid", "internal/schema",
		"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term",
	},
	"internal/cli/uicmd": {"doctor",
		".", "internal/admin", "internal/app", "internal/cli/open", "internal/cli/page", "internal/cli/term", "internal/config", "internal/schema", "pipeline",
		"github.com/spf13/cobra",
	},
	"internal/cli/verifycmd": {"httpidem", "httpidem/idemcheck", "internal/cli/term", "internal/schema", "github.com/spf13/cobra"},
	"internal/cli/whycmd": {
		".", "internal/cli/facts", "internal/cli/keyrecord", "internal/cli/open", "internal/cli/term", "internal/config", "internal/schema",
		"github.com/spf13/cobra",
	},
	"connector":                  {"doctor", ".", "pipeline"},
	"connector/connectortest":    {"connector", "internal/config", "internal/kind", "internal/kind/kindtest", "internal/kind/outside"},
	"program":                    {"connector", "internal/cli", "internal/kind", "internal/kind/outside"},
	"cmd/semel":                  {"connector", "program"},
	"examples":                   {},
	"examples/batch-files":       {".", "store/logstore"},
	"examples/consumer":          {".", "store/logstore"},
	"examples/rabbitmq-consumer": {".", "store/logstore", "github.com/rabbitmq/amqp091-go"},
	"examples/kafka-consumer": {
		".", "store/pgstore", "github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgconn",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo",
	},
	"examples/http-handler":  {".", "store/logstore"},
	"examples/nats-consumer": {".", "store/logstore", "github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream"},
	"examples/order-service": {".", "httpidem", "httpidem/caller", "httpidem/pgidem", "outbox", "store/pgstore"},
	"examples/proxied":       {"httpidem"},
	"examples/produce":       {"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kgo"},
	"examples/sqs-consumer": {
		".", "store/logstore", "github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/config",
		"github.com/aws/aws-sdk-go-v2/service/sqs", "github.com/aws/aws-sdk-go-v2/service/sqs/types",
	},
	"examples/webhook-receiver": {".", "store/pgstore", "github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgxpool"},
	"examples/workers-redis":    {".", "store/redisstore", "github.com/redis/rueidis"},
	"tools/release":             {},
	"tools/packages":            {},
	"tools/services":            {"test/services"},
	"test/faultfs":              {"vfs"},
	"test/brokers":              {},
	"test/http":                 {},
	"test/clients":              {},
	"test/kafka":                {},
	"test/kafkatest": {
		".", "doctor", "internal/retry", "key", "pipeline",
		"github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kerr", "github.com/twmb/franz-go/pkg/kfake", "github.com/twmb/franz-go/pkg/kgo", "github.com/twmb/franz-go/pkg/kmsg",
	},
	"test/programtest": {
		".", "httpidem", "internal/cli", "internal/cli/keyrecord", "internal/cli/term", "internal/kind", "pipeline", "store/logstore", "store/memstore", "test/services", "test/services/servicestest",
		"github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/service/sqs", "github.com/aws/aws-sdk-go-v2/service/sqs/types", "github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgxpool",
		"github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream", "github.com/rabbitmq/amqp091-go", "github.com/twmb/franz-go/pkg/kfake", "github.com/twmb/franz-go/pkg/kgo", "golang.org/x/sys/unix",
	},
	"test/crash": {}, "test/nexmark": {}, "test/release": {},
}

// otherModules in packageMap stands for all packages of other modules that no wall forbids.
const otherModules = "other modules"

// walls say why an edge is forbidden. The test prints the first one that matches.
var walls = []struct{ from, to, why string }{
	{".", "*", "the root package depends on the standard library alone, so that its importers compile nothing else"},
	{"key", "store/*", "a key is found before a store is asked"},
	{"filter", "store/*", "a filter is a data structure; stores are built on it, not under it"},
	{"*", "store/storetest", "only tests import the suite, because it imports package testing"},
	{"store/*", "store/*", "stores import the root and never each other: the user of one must not compile the others"},
	{"*", "test/*", "only tests import what tests share"},
	{"*", "internal/peertest", "only tests import it, because it imports package testing"},
	{"*", "broker/brokertest", "only tests import the suite, because it imports package testing"},
	{"*", "testing", "package testing adds flags to every program, so only packages named *test import it"},
	{"*", "github.com/spf13/*", "flags belong to internal/cli: a library user must not compile them"},
	{"*", "test/services", "servers are started by tests and tools, never by the library or the program"},
	{"store/*", "github.com/*", "an adapter imports its one client library, which the map names"},
	{"*", "test/faultfs", "a file layer that loses writes is for tests and the suite"},
	{"internal/config", "internal/kind*", "config is below the kinds: it knows the interface of a kind, and no kind"},
	{"internal/cli*", "internal/kind*", "a verb asks the interfaces of internal/config: it works with every kind, and names none"},
	{"internal/app", "internal/kind*", "what runs a configuration works with every kind, and names none"},
	{"internal/*", "internal/kind", "only the main package imports the list of kinds, and passes it to others"},
	{"*", "internal/kind/kindtest*", "only tests import the suite of the kinds"},
	{"*", "internal/cli*", "imports only go down, and only the main packages are above internal/cli"},
	{"*", "cmd/*", "no package imports a main package"},
	{"*", "internal/dedup", "imports only go down: the engine of a verb is above the stores"},
	{"*", "github.com/anishathalye/porcupine", "the linearizability checker is for tests"},
	{"*", "unlisted", "the package is not in the map of this test: add it"},
	{"*", "*", "the package map does not have this import: imports only go down, and the map names each dependency where it is used"},
}

// goPackage is the part of go list's output that the test reads.
type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	ForTest    string
}

func listPackages(t *testing.T, args ...string) []goPackage {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Standard,Imports,ForTest"}, args...)...)
	var complaint bytes.Buffer
	command.Stderr = &complaint
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, &complaint)
	}
	var list []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// place shortens an import path to its place in the map.
func place(importPath string) string {
	if importPath == modulePath {
		return "."
	}
	return strings.TrimPrefix(importPath, modulePath+"/")
}

func matches(pattern, name string) bool {
	prefix, wild := strings.CutSuffix(pattern, "*")
	return name == pattern || wild && strings.HasPrefix(name, prefix)
}

func why(from, to string) string {
	for _, w := range walls {
		if matches(w.from, from) && matches(w.to, to) {
			return w.why
		}
	}
	return ""
}

// allowed returns what a package may import, and whether the map has it.
func allowed(from string) (imports []string, listed bool) {
	for name, list := range packageMap {
		if matches(name, from) {
			imports, listed = append(imports, list...), true
		}
	}
	return imports, listed
}

// forbidden returns "" if the map allows the edge, and otherwise the reason. std
// reports whether the imported package is in the standard library.
func forbidden(from, to string, std bool) string {
	imports, _ := allowed(from)
	switch {
	case to == "testing" && !strings.HasSuffix(from, "test"):
		return why(from, to)
	case std, slices.Contains(imports, to):
		return ""
	}
	domain, _, _ := strings.Cut(to, "/") // those of this module have no dot
	among := func(name string) bool {
		return matches(name, to) || name == otherModules && to != "." && strings.Contains(domain, ".")
	}
	if reason := why(from, to); reason != walls[len(walls)-1].why || !slices.ContainsFunc(imports, among) {
		return reason
	}
	return ""
}

func TestArchitectureImportsFollowThePackageMap(t *testing.T) {
	t.Parallel()
	standard := map[string]bool{}
	for _, p := range listPackages(t, "-deps", "./...") {
		standard[p.ImportPath] = p.Standard
	}
	present := map[string]bool{}
	for _, p := range listPackages(t, "./...") {
		from := place(p.ImportPath)
		present[from] = true
		if _, listed := allowed(from); !listed {
			t.Errorf("%s: %s", from, why(from, "unlisted"))
			continue
		}
		for _, imported := range p.Imports {
			to := place(imported)
			if reason := forbidden(from, to, standard[imported] || imported == "unsafe" || imported == "C"); reason != "" {
				t.Errorf("%s imports %s: %s", from, to, reason)
			}
		}
	}
	places := slices.Collect(maps.Keys(present))
	for name := range packageMap {
		if !slices.ContainsFunc(places, func(p string) bool { return matches(name, p) }) {
			t.Errorf("the package map lists %s, which does not exist", name)
		}
	}
}

func TestArchitectureForbiddenEdgesHaveReasons(t *testing.T) {
	t.Parallel()
	for _, edge := range []struct{ from, to, reason string }{
		{".", "github.com/dchest/siphash", "standard library alone"},
		{"store/memstore", "store/logstore", "never each other"},
		{"store/memstore", "store/storetest", "only tests import the suite"},
		{"key", "store/memstore", "before a store is asked"},
		{"key", "github.com/spf13/cobra", "flags belong to internal/cli"},
		{"internal/dedup", "internal/cli", "only the main packages are above"},
		{"internal/dedup", "testing", "only packages named *test"},
		{"tools/new", "unlisted", "not in the map of this test"},
		{"internal/cli", "golang.org/x/net/html", "does not have this import"},
		{"internal/kind/new", "github.com/spf13/pflag", "flags belong to internal/cli"},
		{"internal/kind/new", "broker/brokertest", "only tests import the suite"},
		{"internal/kind/new", "internal/kind/redis", "does not have this import"},
	} {
		std := edge.to == "fmt" || edge.to == "testing"
		if got := forbidden(edge.from, edge.to, std); !strings.Contains(got, edge.reason) {
			t.Errorf("%s imports %s: got reason %q, want one with %q", edge.from, edge.to, got, edge.reason)
		}
	}
	for _, edge := range [][2]string{{"key", "."}, {"internal/kind/filter", "internal/kind/redis"}, {"internal/kind/new", "store/new"}, {"internal/kind/new", "example.com/v2"}} {
		if got := forbidden(edge[0], edge[1], false); got != "" {
			t.Errorf("%s may import %s, got %q", edge[0], edge[1], got)
		}
	}
}

func TestArchitectureRootDependsOnTheStandardLibraryAlone(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t, "-deps", ".") {
		if own := p.ImportPath == modulePath || strings.HasPrefix(p.ImportPath, modulePath+"/internal/"); !p.Standard && !own {
			t.Errorf("the root package depends on %s: %s", p.ImportPath, why(".", "*"))
		}
	}
}

// sourceFile is one parsed file of the project, benchmarks included.
type sourceFile struct {
	name  string
	lines int
	set   *token.FileSet
	tree  *ast.File
}

func (f *sourceFile) test() bool {
	return strings.HasSuffix(f.name, "_test.go") || strings.HasSuffix(f.tree.Name.Name, "test") || strings.HasPrefix(f.name, "test/")
}

// at returns the position of a node as name:line.
func (f *sourceFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.name, f.set.Position(n.Pos()).Line)
}

func parseProject(t *testing.T) []*sourceFile {
	t.Helper()
	var files []*sourceFile
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || name == filepath.Join("bench", "work")):
			return filepath.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, name, source, parser.ParseComments|parser.SkipObjectResolution)
		files = append(files, &sourceFile{filepath.ToSlash(name), bytes.Count(source, []byte("\n")), set, tree})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestArchitectureFilesKeepTheirForm(t *testing.T) {
	t.Parallel()
	const mostLines = 800
	meaningless := []string{"util", "utils", "common", "helper", "helpers", "types", "base", "pkg", "misc", "shared"}
	for _, f := range parseProject(t) {
		if f.lines > mostLines && !ast.IsGenerated(f.tree) {
			t.Errorf("%s has %d lines, more than %d: one file holds one concept", f.name, f.lines, mostLines)
		}
		if name := f.tree.Name.Name; slices.Contains(meaningless, strings.TrimSuffix(name, "_test")) {
			t.Errorf("%s: package %s says nothing about what is in it", f.name, name)
		}
		for _, declared := range f.tree.Decls {
			if fn, ok := declared.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init runs without being called: construct what is needed where it is needed", f.at(fn))
			}
		}
	}
}

func TestArchitectureTestsDoNotSleepOutsideBubbles(t *testing.T) {
	t.Parallel()
	project := parseProject(t)
	blowers := bubbleBlowers(project)
	for _, f := range project {
		if !f.test() {
			continue
		}
		var bubbles []ast.Node
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name, _ := call.Fun.(*ast.Ident) // nil if the function has another form
			if calls(call, "synctest", "Test") || name != nil && blowers[path.Dir(f.name)+"."+name.Name] {
				bubbles = append(bubbles, call)
			}
			return true
		})
		// A statement that runs only in a bubble says so in a comment behind it.
		explained := map[int]bool{}
		for _, group := range f.tree.Comments {
			if strings.Contains(group.Text(), "in a bubble") {
				explained[f.set.Position(group.Pos()).Line] = true
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			inside := func(b ast.Node) bool { return b.Pos() <= n.Pos() && n.End() <= b.End() }
			if ok && explained[f.set.Position(n.Pos()).Line] {
				return true
			}
			if ok && calls(call, "time", "Sleep") && !slices.ContainsFunc(bubbles, inside) {
				t.Errorf("%s: a test that sleeps is slow or wrong: wait for a signal, or use a synctest bubble", f.at(n))
			}
			return true
		})
	}
}

// bubbleBlowers are the test helpers, by directory and name, that call their
// argument in a synctest bubble: functions that are not tests and call
// synctest.Test.
func bubbleBlowers(project []*sourceFile) map[string]bool {
	names := map[string]bool{}
	for _, f := range project {
		for _, declared := range f.tree.Decls {
			fn, ok := declared.(*ast.FuncDecl)
			if !ok || !f.test() || fn.Recv != nil || strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && calls(call, "synctest", "Test") {
					names[path.Dir(f.name)+"."+fn.Name.Name] = true
				}
				return true
			})
		}
	}
	return names
}

// calls reports whether call calls pkg.name.
func calls(call *ast.CallExpr, pkg, name string) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != name {
		return false
	}
	x, ok := selector.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// TestArchitectureGoroutinesAreListed keeps the tables of goroutines in all DESIGN.md
// complete: they name each file that starts a goroutine.
func TestArchitectureGoroutinesAreListed(t *testing.T) {
	t.Parallel()
	var design strings.Builder
	for _, name := range documents(t, designPages...) {
		design.WriteString(readDocument(t, name))
	}
	starting := map[string]bool{}
	for _, f := range parseProject(t) {
		if f.test() || strings.HasPrefix(f.name, "bench/") {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				starting[f.name] = true
			case *ast.CallExpr: // WaitGroup.Go(func() { … })
				selector, ok := n.Fun.(*ast.SelectorExpr)
				starting[f.name] = starting[f.name] || ok && selector.Sel.Name == "Go" && len(n.Args) == 1
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(starting)) {
		if starting[name] && !strings.Contains(design.String(), "`"+name+"`") {
			t.Errorf("%s starts a goroutine: the DESIGN.md next to its package must say who owns it and what stops it", name)
		}
	}
}

// quotedNames returns the words of a line that are in backquotes.
func quotedNames(line string) []string {
	var list []string
	for i, part := range strings.Split(line, "`") {
		if i%2 == 1 {
			list = append(list, part)
		}
	}
	return list
}

// designPages are DESIGN.md and the pages next to their subjects.
var designPages = []string{"DESIGN.md", "*/DESIGN.md", "*/*/DESIGN.md", "*/*/*/DESIGN.md"}

// designTables returns the rows of the tables in all DESIGN.md, as their cells, under the
// lines that introduce them: the last line of text and the table's head.
func designTables(t *testing.T) map[[2]string][][]string {
	t.Helper()
	var design strings.Builder
	for _, name := range documents(t, designPages...) {
		design.WriteString(readDocument(t, name))
	}
	tables := map[[2]string][][]string{}
	var text, head string
	for line := range strings.Lines(design.String()) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			head = ""
			if line != "" {
				text = line
			}
		case head == "":
			head = line
		case !strings.HasPrefix(line, "|--"):
			at := [2]string{text, head}
			tables[at] = append(tables[at], strings.Split(strings.Trim(line, "| "), " | "))
		}
	}
	return tables
}

// TestArchitecturePackagesSayWhatTheyAreFor reads the doc comments of packages.
func TestArchitecturePackagesSayWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	for _, f := range parseProject(t) {
		if name := path.Dir(f.name); !strings.HasSuffix(f.name, "_test.go") {
			said[name] = said[name] || f.tree.Doc != nil
		}
	}
	for name, ok := range said {
		if !ok {
			t.Errorf("package %s has no doc comment: say in its first sentence what it is for", name)
		}
	}
}

// TestArchitectureDesignListsEveryFile compares the file maps of all DESIGN.md with the
// packages that they describe.
func TestArchitectureDesignListsEveryFile(t *testing.T) {
	t.Parallel()
	files := map[string][]string{} // by package
	for _, f := range parseProject(t) {
		if !f.test() && path.Base(f.name) != "doc.go" {
			files[path.Dir(f.name)] = append(files[path.Dir(f.name)], f.name)
		}
	}
	maps := 0
	compare := func(packages, names []string) {
		maps++
		named := map[string]bool{}
		for _, name := range names {
			found := false
			for _, dir := range packages {
				full := path.Join(dir, name)
				if _, err := os.Stat(full); err == nil {
					found, named[full] = true, true
				}
			}
			if !found {
				t.Errorf("the file map of %s names %s, which does not exist", strings.Join(packages, " and "), name)
			}
		}
		for _, dir := range packages {
			for _, name := range files[dir] {
				if !named[name] {
					t.Errorf("the file map of %s lacks %s", dir, path.Base(name))
				}
			}
		}
	}
	for at, rows := range designTables(t) {
		if below, ok := strings.CutPrefix(at[1], "| package below "); ok {
			for _, row := range rows {
				for _, name := range quotedNames(row[0]) {
					names := quotedNames(row[1])
					if len(names) == 0 {
						names = []string{name + ".go"}
					}
					compare([]string{path.Join(quotedNames(below)[0], name)}, names)
				}
			}
			continue
		}
		if !strings.HasPrefix(at[1], "| file") {
			continue
		}
		packages := quotedNames(at[1])
		if len(packages) == 0 {
			packages = slices.DeleteFunc(quotedNames(at[0]), func(name string) bool { return strings.Contains(name, ".") })
		}
		if len(packages) == 0 {
			packages = []string{"."}
		}
		var names []string
		for _, row := range rows {
			names = append(names, quotedNames(row[0])...)
		}
		compare(packages, names)
	}
	if maps < 10 {
		t.Errorf("only %d file maps were found", maps)
	}
}
