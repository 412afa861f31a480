# The only entry points: people, CI and the README use these targets.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory

PREFIX ?= /usr/local
DESTDIR ?=

# For the verbs bindings; looked for in each recipe, since setup may just have installed it.
ifndef LIBCLANG_PATH
export LIBCLANG_PATH = $(shell scripts/libclang.sh)
endif

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what is missing (Debian, Ubuntu), or say what is
	@scripts/setup.sh

.PHONY: demo
demo: build ## Build, then move data over two simulated rails through every table, each byte checked
	@scripts/demo.sh

.PHONY: test
test: build ## Build, then run all tests
	@cargo test --workspace

# Of make soak.
SECONDS ?= 600

.PHONY: soak
soak: setup ## Move checked data between two processes for SECONDS (default 600) and look for leaks
	@SOAK_SECONDS=$(SECONDS) TEST_SHOW=1 cargo test -p mpib-tests --test soak eight_connections -- --nocapture 2>&1 | grep --line-buffered -v '^\[3\]'

.PHONY: check
check: setup check-fmt check-clippy check-doc check-deny check-loom ## Format, lints, documentation, dependencies, memory model

.PHONY: check-fmt check-clippy check-doc check-deny check-loom
check-fmt check-clippy check-doc check-deny check-loom:
	@echo "== $(@:check-%=%)"
	@scripts/check.sh $(@:check-%=%)

.PHONY: advisories
advisories: ## Look for known vulnerabilities in dependencies (needs the network)
	@scripts/check.sh advisories

.PHONY: vm-test vm-test-short vm-shell
vm-test: build vm-setup ## Run the checks of tests/vm between two virtual machines, on the kernel's own RDMA stack (Debian 12)
	@tests/vm/run.sh long

vm-test-short: build vm-setup ## The most telling of them
	@tests/vm/run.sh short

vm-shell: build vm-setup ## A shell in one of the two machines
	@tests/vm/run.sh shell

.PHONY: vm-setup
vm-setup:
	@scripts/setup.sh vm

.PHONY: miri
miri: ## Run the tests of the unsafe border and of the protocol under miri, where it is installed
	@scripts/check.sh miri

.PHONY: build
build: setup ## Build the plugin, mpib and softverbs into build/
	@scripts/build.sh

.PHONY: install
install: ## Install build/ under PREFIX (default /usr/local); DESTDIR is put in front
	@scripts/install.sh "$(PREFIX)" "$(DESTDIR)"

.PHONY: bench
bench: build ## Measure the plugin over softverbs without a rate limit, the part of two rails' sum it reaches, and the cost of its tables
	@scripts/bench.sh

.PHONY: bench-peers
bench-peers: build ## Measure the plugin beside the InfiniBand transport of RELEASE (2.32.3), on the same simulated rails
	@scripts/bench-peers.sh $(or $(RELEASE),2.32.3)

.PHONY: matrix matrix-short matrix-gpu
matrix: build ## Load the plugin into every NCCL release (7 GB of cache); RELEASES="2.32.3 …", WRITE=1 renews RESULTS.md
	@scripts/matrix.sh run $(RELEASES) $(if $(WRITE),--write) $(MATRIX)
matrix-short: build ## The same with one release for each table version (3 GB of cache)
	@scripts/matrix.sh run --short $(if $(WRITE),--write) $(MATRIX)
matrix-gpu: build ## Collectives of two ranks on a GPU through the plugin and through sockets; does nothing without a GPU
	@scripts/matrix.sh gpu $(RELEASE)

.PHONY: clean
clean: ## Remove build/ and cargo's target/
	@rm -rf build
	@cargo clean
