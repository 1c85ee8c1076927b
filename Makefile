# Everything a developer runs. Needs Go, git and a POSIX shell; other tools are
# fetched by their pinned version when a target runs them.
GO ?= go
FUZZTIME ?= 20s
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# What `make services` starts: names of `go run ./tools/services list`, or all.
SERVICES ?=
# "required": a test whose server is not installed fails. Empty: it is skipped.
export SEMEL_SERVICES ?= required

.DEFAULT_GOAL := help
.PHONY: help build test test-matrix check race faults fuzz crash services services-stop services-install bench bench-report

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the program as ./semel
	$(GO) build -o semel ./cmd/semel

test: services-install check race faults fuzz ## Run all checks: check, tests with the race detector on real servers, fuzz targets

check: ## Check format, vet, staticcheck and architecture
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')) && test -z "$$unformatted" || \
		{ printf 'not formatted (run gofmt -w):\n%s\n' "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) vet -C test/faults ./...
	cd test/faults && $(GO) run $(STATICCHECK) ./...
	$(GO) test -count=1 -run '^TestArchitecture' .

race:
	$(GO) test -race -timeout 20m ./...

faults: # a module of its own, for its proxy
	$(GO) test -C test/faults -race -timeout 20m ./...

test-matrix: ## Test the shared stores on every version of their servers
	$(GO) run ./tools/services install all
	@set -e; for redis in redis-7.0 redis-8.2 valkey-9; do \
		echo "SEMEL_REDIS=$$redis"; \
		SEMEL_REDIS=$$redis $(GO) test -count=1 -timeout 20m ./internal/services/... ./store/redisstore/... ./store/tiered/...; \
	done
	@set -e; for postgres in 15 18; do \
		echo "SEMEL_POSTGRES=$$postgres"; \
		SEMEL_POSTGRES=$$postgres $(GO) test -count=1 -timeout 20m ./internal/services/... ./store/pgstore/... ./store/tiered/...; \
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
fuzz: ## Run each fuzz target for FUZZTIME (20s)
	@set -e; log=$$(mktemp); trap 'rm -f "$$log"' EXIT; for package in $$($(GO) list ./...); do \
		listed=$$($(GO) test -list '^Fuzz' $$package); \
		for target in $$(printf '%s\n' "$$listed" | sed -n '/^Fuzz/p'); do \
			echo "fuzz $$target in $$package for $(FUZZTIME)"; \
			status=0; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package >"$$log" 2>&1 || status=$$?; \
			cat "$$log"; \
			test $$status = 0 || { grep -q '^    context deadline exceeded$$' "$$log" && \
				! grep -Eq 'Failing input|seed corpus|panic|hung|_test.go:' "$$log" && \
				echo "the time limit fell into a try of an input, none failed: going on"; } || exit $$status; \
		done; \
	done

crash: ## Kill the program 200 times and compare what it wrote
	$(GO) test -count=1 -timeout 1h -v ./test/crash -kills 200

bench: ## Measure beside the peers (40 min; see bench/README.md)
	$(GO) run -C bench ./cmd/bench all

bench-report: ## Make docs/performance.md from the results of bench
	$(GO) run -C bench ./cmd/report
