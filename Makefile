# All commands of a developer. They need Go, git and a POSIX shell, and for the clients Python 3
# with pip and Node 20 with npm. Other tools are fetched in a pinned version when a target runs them.
GO ?= go
FUZZTIME ?= 1s
# Where fuzz targets are looked for.
FUZZPATHS ?= '*_test.go'
SOAK ?= 30m
# It collects garbage seldom, which saves a quarter of its processor time and takes 0.6 GB.
STATICCHECK = GOGC=400 $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Lists packages. The race detector makes tests up to ten times slower. It runs for packages
# whose own code starts goroutines or takes locks, and not for verbs and whole programs, whose
# goroutines are those of the packages below. Where it costs minutes, it runs for an eighth
# of the tests, drawn in each run. test-full has it for all.
PACKAGES = $(GO) run ./tools/packages
# The servers that `make services` starts: names from `go run ./tools/services list`. Empty: all.
SERVICES ?=
# "required": a test fails if its server is not installed. Empty: the test is skipped. "none": it
# is skipped although its server is installed.
export SEMEL_SERVICES ?= required

.DEFAULT_GOAL := help
.PHONY: help build release release-check quick test serve test-full memory streams test-matrix check race sampled plain faults vulncheck fuzz crash services services-stop services-install soak bench bench-growth bench-cost bench-report

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the program as ./semel: static, without symbols
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o semel ./cmd/semel

release: ## Build archives, deb, rpm, clients, SBOM and checksums of the last commit in ./dist
	$(GO) run ./tools/release -out dist

release-check: ## Build the last commit's release twice, compare, install and remove the deb
	$(GO) test -count=1 -timeout 2h -v ./test/release -full

quick: ## Check what changed since main, and what imports it, without servers: about a minute
	$(GO) vet ./...
	$(GO) test -count=1 -run '^TestArchitecture' .
	packages=$$($(PACKAGES) changed main) && test -z "$$packages" || SEMEL_SERVICES=none $(TEST) $$packages

test: services-install check serve ## Run the gate: check, and all tests on real servers, with a few kills of each kind
	$(SERVED) $(MAKE) -j 2 race plain sampled faults SERVED=

# Tests share servers, each with its own database, prefix, topics and queues. $(SERVED) starts
# them for a command, always new ones, and ends them with it. They are not shared where some
# may be missing: then each package starts those that it finds. The program is built and
# takes the place of the shell, because neither `go run` nor a shell passes a signal on.
SHARED = postgres-15 redis-7.0 nats-2 rabbitmq-3.10 elasticmq kafka-4.3
SERVED = $(if $(filter required,$(SEMEL_SERVICES)),.work/bin/services run $(SHARED) --)
serve:
	@mkdir -p .work/bin && $(GO) build -o .work/bin ./tools/services

check: ## Check format, vet, staticcheck, architecture, the harness of bench, the clients and the OpenAPI document
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')) && test -z "$$unformatted" || \
		{ printf 'not formatted (run gofmt -w):\n%s\n' "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) vet -C test/faults ./...
	cd test/faults && $(STATICCHECK) ./...
	$(GO) vet -C contrib/watermill ./...
	$(GO) vet -C examples/own-kinds ./...
	$(GO) vet -C test/browser ./...
	cd contrib/watermill && $(STATICCHECK) ./...
	$(GO) vet -C bench ./...
	$(GO) test -C bench -short -vet=off -ldflags=-w ./...
	$(GO) test -count=1 -vet=off -ldflags=-w .
	python=$$(clients/python/venv.sh) && cd clients/python && \
		$$python -m ruff format --check -q . && $$python -m ruff check -q . && $$python -m mypy
	cd clients/typescript && ./install.sh && npm run --silent check
	@found=$$(REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true clients/typescript/test/node_modules/.bin/redocly \
		lint --extends recommended-strict --format stylish internal/storeapi/openapi.json 2>&1) || { printf '%s\n' "$$found"; exit 1; }

vulncheck: ## Look for known vulnerabilities in what the program calls; needs their database
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

# Servers and tests keep their files in memory where there is room: the machine survives the
# tests. $(SERVED) sets TMPDIR.
test race sampled plain faults: export SEMEL_SERVICES_DIR ?= $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 { print "/dev/shm" }')

# With -short, tests of every operation, or of many random ones, run a sample, which
# differs from run to run. Most tests wait for servers and timers, so more of them run
# concurrently than there are processors. The target check has vetted them. A test program
# without tables for a debugger is linked in two thirds of the time.
TEST = $(GO) test -short -vet=off -ldflags=-w -p 2 -parallel 4 -timeout 20m

# The packages that take longest wait most, so they begin first and others run beside them. The
# target check runs what reads the project's own code, and needs no race detector.
race: $(if $(SERVED),serve)
	exec $(SERVED) $(TEST) -p 3 -race -skip '^Test(Architecture|PublicAPINamesNoInternalTypes|EverySuiteRunsInAnotherModule|ModuleOutsideTheCloneBuilds)' ./store/pgstore $$($(PACKAGES) race)
	exec $(SERVED) $(GO) test -C contrib/watermill -race -short -vet=off -ldflags=-w -timeout 5m ./...

sampled: $(if $(SERVED),serve)
	exec $(SERVED) $(TEST) -race -run "$$($(PACKAGES) sample)" $$($(PACKAGES) sampled)

plain: $(if $(SERVED),serve)
	exec $(SERVED) $(TEST) ./test/kafka ./broker/kafka/kafkatxn $$($(PACKAGES) plain)

# The tests wait for servers and leases, so all stores of a test run at once.
faults: # a separate module, because of its proxy
	$(GO) test -C test/faults -vet=off -ldflags=-w -parallel 6 -timeout 20m ./... -race-keys 8000 -kills 4

browser: services-install ## Show the page to a real browser; it needs chromium-headless-shell
	npm ci --prefix test/browser --no-audit --no-fund --silent
	$(GO) test -C test/browser -count=1 -timeout 30m .

test-full: services-install check browser ## Run all tests in full, on every version of their servers, with more kills, fuzzing and the soak
	@test "$(SEMEL_SERVICES)" != required || $(GO) run ./tools/services install librdkafka
	$(GO) test -race -count=1 -timeout 1h ./...
	$(GO) test -C contrib/watermill -race -count=1 -timeout 5m ./...
	$(GO) test -C test/faults -race -count=1 -timeout 1h ./... -rounds 3 -kills 60
	$(MAKE) memory
	$(MAKE) streams
	$(MAKE) fuzz FUZZTIME=1m
	$(MAKE) crash
	$(MAKE) test-matrix
	$(MAKE) soak

# The race detector takes most of the memory of a program.
memory:
	$(GO) test -count=1 -timeout 5m -run '^Test(ManyClientsWaitForTheResponseOfOneRequest|AFloodOfKeysLeavesMemoryBounded)$$' ./test/http

streams: services-install ## Compare windows and joins of Semel with those of Kafka Streams, result by result
	$(GO) test -C bench -count=1 -timeout 20m -v ./internal/suite -run KafkaStreams

# The verbs leave out the tests that need Kafka, because there is one version of it. The
# faults are those of the server in question.
MATRIX_TEST = $(GO) test -count=1 -timeout 20m
MATRIX_VERBS = $(MATRIX_TEST) -skip 'Kafka|Scenarios|Quickstart' ./internal/cli/...
MATRIX_FAULTS = $(GO) test -C test/faults -count=1 -timeout 20m -run

test-matrix: ## Test the shared stores on every version of their servers
	$(GO) run ./tools/services install all
	@set -e; for redis in redis-7.0 redis-8.2 valkey-9; do \
		echo "SEMEL_REDIS=$$redis"; export SEMEL_REDIS=$$redis; \
		$(MATRIX_TEST) ./test/services/... ./store/redisstore/... ./store/tiered/...; \
		$(MATRIX_VERBS); \
		$(MATRIX_FAULTS) /redis ./... -race-keys 5000; \
	done
	@set -e; for postgres in 15 18; do \
		echo "SEMEL_POSTGRES=$$postgres"; export SEMEL_POSTGRES=$$postgres; \
		$(MATRIX_TEST) ./test/services/... ./store/pgstore/... ./store/tiered/... ./broker/postgres; \
		$(MATRIX_VERBS); \
		$(MATRIX_FAULTS) /postgres ./... -race-keys 5000; \
	done

services: ## Install and start servers, print their addresses (SERVICES="redis-7.0 ...")
	@$(GO) run ./tools/services install $(SERVICES)
	@$(GO) run ./tools/services start -detach $(SERVICES)

services-stop: ## Stop what `make services` started
	@$(GO) run ./tools/services stop

services-install:
	@test "$(SEMEL_SERVICES)" != required || $(GO) run ./tools/services install

# At its time limit, Go's fuzzer sometimes fails with only "context deadline exceeded",
# because it is trying an input. The target ignores this failure. It does not ignore a
# real finding, which also names a failing input, a seed or a hung process. Without
# -fuzzminimizetime, the fuzzer spends most of the time on minimizing inputs that find
# new code, and tries a fraction of the inputs.
fuzz: ## Run each fuzz target for FUZZTIME (1s)
	@set -e; log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	targets=$$(git grep --untracked -Eo '^func Fuzz[A-Za-z0-9_]+' -- $(FUZZPATHS)); \
	for found in $$(printf '%s\n' "$$targets" | sed 's/:func /:/'); do \
		package=./$$(dirname "$${found%%:*}"); target=$${found##*:}; \
		echo "fuzz $$target in $$package for $(FUZZTIME)"; \
		status=0; \
		$(GO) test -vet=off -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$package >"$$log" 2>&1 || status=$$?; \
		cat "$$log"; \
		test $$status = 0 || { grep -q '^    context deadline exceeded$$' "$$log" && \
			! grep -Eq 'Failing input|seed corpus|panic|hung|_test.go:' "$$log" && \
			echo "the time limit interrupted an input; no input failed, so the next target runs"; } || exit $$status; \
	done

crash: ## Kill the program 200 times and compare what it wrote
	$(GO) test -count=1 -timeout 1h -v ./test/crash -kills 200

# The run ends by itself after at most twice its time.
soak: services-install ## Run pipelines for SOAK (30m) under random faults: outputs exact, memory flat
	$(GO) test -count=1 -timeout 0 -v ./test/kafka -run '^TestSoak$$' -soak $(SOAK)

bench: ## Measure Semel and its peers (2 h; see bench/README.md)
	$(GO) run -C bench ./cmd/bench all

bench-growth: ## Measure stores at 1 M to 1,000 M keys (80 min; needs 60 GB of disk)
	$(GO) run -C bench ./cmd/growth

bench-cost: ## Measure what a million messages of each scenario take (8 min)
	$(GO) run -C bench ./cmd/cost

bench-report: ## Write docs/performance.md, its charts and the tables from the results of bench
	$(GO) run -C bench ./cmd/report
