# Everything a developer runs. Needs Go, git and a POSIX shell; other tools are
# fetched by their pinned version when a target runs them.
GO ?= go
FUZZTIME ?= 10s
SOAK ?= 30m
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What `make services` starts: names of `go run ./tools/services list`, or all.
SERVICES ?=
# "required": a test whose server is not installed fails. Empty: it is skipped.
export SEMEL_SERVICES ?= required

.DEFAULT_GOAL := help
.PHONY: help build test test-full test-matrix check race counts faults fuzz crash services services-stop services-install soak bench bench-report

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the program as ./semel
	$(GO) build -o semel ./cmd/semel

test: services-install check race counts faults fuzz ## Run all checks: check, tests with the race detector on real servers, fuzz targets

check: ## Check format, vet, staticcheck, architecture and the harness of bench
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')) && test -z "$$unformatted" || \
		{ printf 'not formatted (run gofmt -w):\n%s\n' "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) vet -C test/faults ./...
	cd test/faults && $(GO) run $(STATICCHECK) ./...
	$(GO) vet -C bench ./...
	$(GO) test -C bench -short -vet=off ./...
	$(GO) test -count=1 -run '^TestArchitecture' .

# With -short, tests that go through every operation, or many random ones, take
# a sample, another in each run. Most tests wait for servers and timers, so more
# of them run at once than there are processors. check has vetted them.
race:
	$(GO) test -race -short -vet=off -parallel 4 -timeout 20m ./...

# What -short leaves out, where no server is needed: without the race detector,
# under which it takes eight times as long.
counts:
	$(GO) test -vet=off -timeout 20m ./store/logstore ./store/memstore ./store/storetest

faults: # a module of its own, for its proxy
	$(GO) test -C test/faults -race -vet=off -timeout 20m ./... -race-keys 25000

test-full: services-install ## Run all tests in full with the race detector, and kill more often (an hour)
	@test "$(SEMEL_SERVICES)" != required || $(GO) run ./tools/services install librdkafka
	$(GO) test -race -count=1 -timeout 1h ./...
	$(GO) test -C test/faults -race -count=1 -timeout 1h ./... -rounds 3 -kills 60
	$(MAKE) fuzz FUZZTIME=1m
	$(MAKE) crash

# Of the program's verbs all but what needs Kafka, of which there is one version;
# of the faults those of the server in question.
MATRIX_TEST = $(GO) test -count=1 -timeout 20m
MATRIX_VERBS = $(MATRIX_TEST) -skip 'Kafka|Scenarios|Quickstart' ./internal/cli
MATRIX_FAULTS = $(GO) test -C test/faults -count=1 -timeout 20m -run

test-matrix: ## Test the shared stores on every version of their servers
	$(GO) run ./tools/services install all
	@set -e; for redis in redis-7.0 redis-8.2 valkey-9; do \
		echo "SEMEL_REDIS=$$redis"; export SEMEL_REDIS=$$redis; \
		$(MATRIX_TEST) ./internal/services/... ./store/redisstore/... ./store/tiered/...; \
		$(MATRIX_VERBS); \
		$(MATRIX_FAULTS) /redis ./... -race-keys 5000; \
	done
	@set -e; for postgres in 15 18; do \
		echo "SEMEL_POSTGRES=$$postgres"; export SEMEL_POSTGRES=$$postgres; \
		$(MATRIX_TEST) ./internal/services/... ./store/pgstore/... ./store/tiered/... ./broker/postgres; \
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

# At its time limit Go's fuzzer sometimes fails with "context deadline exceeded"
# alone, while it tries an input. A real finding always names a failing input, a
# seed or a hung process as well; that output is not excused.
fuzz: ## Run each fuzz target for FUZZTIME (10s)
	@set -e; log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	targets=$$(git grep --untracked -Eo '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go'); \
	for found in $$(printf '%s\n' "$$targets" | sed 's/:func /:/'); do \
		package=./$$(dirname "$${found%%:*}"); target=$${found##*:}; \
		echo "fuzz $$target in $$package for $(FUZZTIME)"; \
		status=0; \
		$(GO) test -vet=off -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package >"$$log" 2>&1 || status=$$?; \
		cat "$$log"; \
		test $$status = 0 || { grep -q '^    context deadline exceeded$$' "$$log" && \
			! grep -Eq 'Failing input|seed corpus|panic|hung|_test.go:' "$$log" && \
			echo "the time limit fell into a try of an input, none failed: going on"; } || exit $$status; \
	done

crash: ## Kill the program 200 times and compare what it wrote
	$(GO) test -count=1 -timeout 1h -v ./test/crash -kills 200

# The run itself ends after at most twice its time.
soak: services-install ## Run pipelines for SOAK (30m) under random faults: outputs exact, memory flat
	$(GO) test -count=1 -timeout 0 -v ./test/kafka -run '^TestSoak$$' -soak $(SOAK)

bench: ## Measure beside the peers (90 min; see bench/README.md)
	$(GO) run -C bench ./cmd/bench all

bench-report: ## Make docs/performance.md from the results of bench
	$(GO) run -C bench ./cmd/report
