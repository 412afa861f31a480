# The only entry points: people, CI and the README use these targets.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
# Setup comes before all else, and cargo uses all cores anyway.
.NOTPARALLEL:

PREFIX ?= /usr/local
DESTDIR ?=
# Where the plugin goes (default PREFIX/lib), and ENABLE=1: NCCL uses it without NCCL_NET_PLUGIN.
export LIBDIR ENABLE

# SETUP=no: install nothing. Setup then lists what is missing, and fails if that is anything.
export SETUP

# With what rdma-sys needs. The scripts do the same for themselves.
cargo = eval "$$(scripts/libclang.sh env)"; cargo

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup setup-test setup-matrix setup-vm setup-instructions setup-monitoring setup-browser setup-package setup-manifests
setup: ## Install what building needs, each step announced; SETUP=no with any target: only list what is missing
	@scripts/setup.sh build
setup-test setup-matrix setup-vm setup-instructions setup-monitoring setup-browser setup-package setup-manifests:
	@scripts/setup.sh $(@:setup-%=%)

.PHONY: demo
demo: build ## Build, then move checked data over two simulated rails through every table; then one rail fails and returns
	@scripts/demo.sh

.PHONY: test
test: setup-test build ## Build, then run all tests; prints the slowest suites and what failed
	@scripts/test.sh --workspace

.PHONY: explore
explore: setup ## Explore the failover machines of both ends whole, in larger worlds than make test does; prints states and depth
	@$(cargo) test --locked --release -p nccl-net-mpib --lib failover::tests::explorer -- --ignored --nocapture --test-threads=1

# Runs SUITES, or those of the third list, with a variable at each of some values.
define each
failed=; for value in $(2); do \
	echo "== $$value"; \
	$(1)=$$value scripts/test.sh --workspace $(addprefix --test ,$(or $(SUITES),$(3))) || failed="$$failed $$value"; \
done; \
[ -z "$$failed" ] || { echo "failed on:$$failed"; exit 1; }
endef

.PHONY: test-providers
test-providers: setup-test ## Run suites of the plugin's tests on adapters as each provider has them; PROVIDERS="mlx5 irdma" SUITES="data memory connect failover rma"
	@$(call each,SOFTVERBS_QUIRKS,$(or $(PROVIDERS),mlx5 bnxt_re irdma ionic erdma hns rxe),data memory connect failover rma)

.PHONY: test-order
test-order: setup-test ## Run suites of the plugin's tests where data lands late and in any order; ORDERS="late relaxed" SUITES="data failover"
	@$(call each,SOFTVERBS_ORDER,$(or $(ORDERS),late relaxed),data memory connect control failover rma)

.PHONY: test-quick
test-quick: setup ## While you write: unit tests of all libraries, and the suites data, connect and layers
	@scripts/test.sh --workspace --lib --test data --test connect --test layers

.PHONY: faults
faults: setup-test ## Let rails die at every work request of each kind of traffic, and count the faults
	@export FAULT_POINTS=all; $(cargo) test --locked --workspace --test failover -- --nocapture 2>&1 | awk '/ fault points$$/ { sub(/.* \.\.\. /, ""); print; n += $$(NF - 2) } /^test result: |FAILED|panicked/ { print } END { print n " fault points in all" }'

.PHONY: random-faults
random-faults: setup-test ## Draw COUNT (default 2000) scenarios of messages, and as many of puts: any faults that can be survived; TEST_SEED=N begins with N
	@export RANDOM_FAULTS=$(or $(COUNT),2000); log=$${CARGO_TARGET_DIR:-target}/random-faults.log; code=0; mkdir -p "$${log%/*}"; \
	$(cargo) test --locked --workspace --test failover random_faults -- --nocapture >"$$log" 2>&1 || code=$$?; \
	grep -a '^random faults: \|^test result: \|scenarios failed\|^error' "$$log" || true; \
	[ $$code = 0 ] || { echo "all that was printed: $$log"; exit $$code; }

# Of make soak, make soak-agent and make fuzz.
SECONDS ?= $(if $(filter fuzz,$(MAKECMDGOALS)),60,600)

.PHONY: test-flakes
test-flakes: setup-test ## Repeat the suites control, faults, failover and soak RUNS times (10) beside busy processors, and print the failures of each test; SUITES="control soak"
	@scripts/flakes.sh $(or $(RUNS),10) $(SUITES)

.PHONY: unsafe-lines
unsafe-lines: setup-test build ## Run all tests with coverage, and print the lines in unsafe blocks that none executes (rustup's llvm-tools); TESTS="-p nccl-net-versions"
	@scripts/unsafe-lines.sh $(TESTS)

.PHONY: hwcheck-faults
hwcheck-faults: setup-test build ## Let mpib hwcheck find every seeded fault, not every third as in make test
	@export HWCHECK_FAULTS=all; $(cargo) test --locked --workspace --test cli every_seeded_fault -- --nocapture

.PHONY: soak
soak: setup ## Move checked data between two processes for SECONDS (default 600) and look for leaks; FLAPS=1: while a rail goes down and up
	@export SOAK_SECONDS=$(SECONDS) SOAK_FLAPS=$(FLAPS) TEST_SHOW=1; $(cargo) test --locked --workspace --test soak eight_connections -- --nocapture 2>&1 | grep --line-buffered -v '^\[3\]'

.PHONY: soak-agent
soak-agent: setup ## Let hostile users and clients loose on an agent for SECONDS (default 600), as root, and measure what an honest user sees
	@export TEST_SOAK_SECONDS=$(SECONDS); $(cargo) test --locked --release --workspace --test agent hostile -- --nocapture 2>&1 | grep '^hostile users\|^test \|panicked\|skipped'; exit $${PIPESTATUS[0]}

.PHONY: fuzz
fuzz: setup ## Fuzz each target for SECONDS (default 60) under AddressSanitizer; TARGETS="messages link" runs these, JOBS=4 four at a time
	@export JOBS=$(JOBS); scripts/fuzz.sh $(SECONDS) $(TARGETS)

.PHONY: sanitize
sanitize: setup-test build ## Run the suites that move data with AddressSanitizer and ThreadSanitizer; KINDS=thread, SUITES="data faults"
	@export SUITES="$(SUITES)"; scripts/sanitize.sh $(KINDS)

.PHONY: check
check: check-fmt check-prose check-names check-manifests check-chart check-unit check-clippy check-doc check-deny check-loom check-instructions ## Format, wording, manifests, the agent's unit, lints, documentation, dependencies, memory model, instruction counts

.PHONY: check-fmt check-build check-clippy check-doc check-deny check-loom check-manifests check-names check-prose check-unit
check-build check-clippy check-doc check-deny check-loom: setup
check-manifests: setup-manifests
check-fmt check-build check-clippy check-doc check-deny check-loom check-manifests check-names check-prose check-unit:
	@echo "== $(@:check-%=%)"
	@scripts/check.sh $(@:check-%=%)

.PHONY: check-chart
check-chart: setup-manifests ## Check the Helm chart, and that packaging/kubernetes/mpib.yaml is what it renders; WRITE=1 renews that
	@echo "== chart"
	@scripts/chart.sh $(if $(WRITE),--write)

.PHONY: check-cluster
check-cluster: ## Install the Helm chart in a cluster of one node, by kind, with a job and the agent beside it; needs docker, kind, kubectl, helm and make package
	@scripts/kind.sh

.PHONY: check-instructions
check-instructions: setup-instructions build ## Compare the plugin's instructions per message with benches/instructions.toml; WRITE=1 renews it
	@echo "== instructions"
	@scripts/instructions.sh $(if $(WRITE),--write)

.PHONY: advisories
advisories: ## Look for known vulnerabilities in dependencies (needs the network)
	@scripts/check.sh advisories

.PHONY: book
book: ## Make the guide as a book in build/book/html (mdbook, which cargo installs into the cache)
	@scripts/book.sh

.PHONY: picture
picture: setup-browser build ## Take the picture of the agent's page for the manual (Chromium)
	@export PAGE_PICTURE=$$PWD/docs/guide/agent.png; unshare --user --map-root-user --pid --fork --mount-proc --uts bash -c 'hostname node7; $(cargo) test --locked --workspace --test cli page::a_rail_that_dies'

.PHONY: vm-test vm-test-short vm-shell
vm-test: setup-vm build ## Run the checks of tests/vm between two virtual machines, on the kernel's own RDMA stack (Debian 12)
	@tests/vm/run.sh long

vm-test-short: setup-vm build ## The most important of them
	@tests/vm/run.sh short

vm-shell: setup-vm build ## A shell in one of the two machines
	@tests/vm/run.sh shell

.PHONY: notices sbom
notices: setup ## Renew the licences of the software that the programs contain (cargo-about; needs the network)
	@scripts/notices.sh
sbom: setup ## Write build/sbom/: what the programs contain, for tools that look for vulnerabilities (cargo-cyclonedx)
	@scripts/sbom.sh

.PHONY: check-reproducible
check-reproducible: setup ## Build the last commit in two folders, and compare the files that packages hold
	@scripts/reproducible.sh

.PHONY: miri
miri: setup ## Run the tests of the unsafe border and of the protocol under miri, where it is installed
	@scripts/check.sh miri

.PHONY: build
build: setup ## Build the plugin, mpib and softverbs into build/
	@scripts/build.sh

.PHONY: install
install: ## Install build/ under PREFIX (default /usr/local); LIBDIR, DESTDIR; ENABLE=1: as NCCL's default plugin
	@scripts/install.sh "$(PREFIX)" "$(DESTDIR)"

.PHONY: uninstall
uninstall: ## Remove what make install installed under PREFIX
	@scripts/uninstall.sh "$(PREFIX)" "$(DESTDIR)"

.PHONY: package check-package
package: setup-package ## Build tarballs, debs, rpms and wheels for glibc 2.17 into build/package; ARCH="x86_64 aarch64"
	@scripts/package.sh $(ARCH)
check-package: ## Install, use and remove the packages in bare roots (debootstrap, as root); CASES="bookworm-deb wheel …"
	@scripts/package-test.sh $(CASES)

.PHONY: bench
bench: setup-instructions build ## Measure the plugin over softverbs without a rate limit, the part of two rails' sum it reaches, and the cost of its tables
	@scripts/bench.sh

.PHONY: bench-peers
bench-peers: setup-matrix setup-instructions build ## Measure the plugin beside the InfiniBand transport of RELEASE (2.32.3), on the same simulated rails
	@scripts/bench-peers.sh $(or $(RELEASE),2.32.3)

.PHONY: bench-adaptive
bench-adaptive: setup ## Measure the split by measurement on simulated rails: what it reaches, and how soon it follows a rate that changes
	@scripts/bench-adaptive.sh

.PHONY: bench-failover
bench-failover: setup-matrix setup-instructions build ## Measure stalls and throughput while one of two simulated rails fails and returns, beside the transport of RELEASE
	@scripts/bench-failover.sh $(or $(RELEASE),2.32.3)

.PHONY: bench-storm
bench-storm: build ## Measure how long each connection takes while 64 processes connect to each other, all to all
	@build/mpib-bench storm

.PHONY: bench-one-sided
bench-one-sided: setup-matrix build ## Measure puts, signals and gets beside the RMA table of NCCL's InfiniBand code of RELEASE, on simulated rails
	@scripts/bench-one-sided.sh $(or $(RELEASE),2.32.3)

.PHONY: matrix matrix-short matrix-example matrix-gpu gpu-bundle
matrix: setup-matrix build ## Load the plugin into every NCCL release (10 GB of cache); RELEASES="2.32.3 …", WRITE=1 renews RESULTS.md
	@scripts/matrix.sh run $(RELEASES) $(if $(WRITE),--write) $(MATRIX)
matrix-short: setup-matrix build ## The same with one release for each table version (3 GB of cache)
	@scripts/matrix.sh run --short $(if $(WRITE),--write) $(MATRIX)
	@$(MAKE) matrix-example
matrix-example: setup-matrix build ## Load the example plugin of crate versions into one NCCL release (RELEASE, else the newest)
	@$(cargo) build --locked --release -p nccl-net-versions --example loopback
	@scripts/matrix.sh load $${CARGO_TARGET_DIR:-target}/release/examples/libloopback.so $(RELEASE)
matrix-gpu: setup-matrix build ## Collectives of two ranks on a GPU through the plugin and through sockets; does nothing without a GPU
	@scripts/matrix.sh collectives $(or $(RELEASE),2.32.3) --gpu --net mpib,socket --protocols simple,ll,ll128 || [ $$? = 77 ]
gpu-bundle: build ## Make and test build/gpu-bundle: all checks for a machine with a GPU, without Rust and network (gpu-check.sh)
	@scripts/gpu-bundle.sh

.PHONY: collectives
collectives: setup-matrix build ## Run real collectives of whole communicators without a GPU, one release for each table version (3 GB of cache); RELEASES="2.32.3 …"
	@scripts/collectives.sh $(or $(RELEASES),--short) --suite --times 1 --counts 1,300007 $(COLLECTIVES)

.PHONY: why why-short
why: setup-matrix build ## Stage what hangs or slows real collectives between hosts, and check that mpib why names the cause; needs root; RELEASE=2.32.3
	@scripts/collectives.sh $(or $(RELEASE),2.32.3) --why
why-short: setup-matrix build ## The same with two of the thirteen situations
	@scripts/collectives.sh $(or $(RELEASE),2.32.3) --why=stopped,drained

.PHONY: topologies topologies-short
topologies: setup-matrix build ## Compare what NCCL makes of PCI trees with the plugin's adapters and with those of net_ib, one release per table version; RELEASE=2.32.3, WRITE=1 renews the page
	@scripts/topologies.sh $(RELEASE) $(if $(WRITE),--write) $(TOPOLOGIES)
topologies-short: setup-matrix build ## The same with the newest release
	@scripts/topologies.sh --newest $(TOPOLOGIES)

.PHONY: bench-collectives
bench-collectives: setup-matrix build ## Measure collectives without a GPU over the plugin, the InfiniBand transport of RELEASE (2.32.3) and sockets
	@scripts/bench-collectives.sh $(or $(RELEASE),2.32.3)

.PHONY: clean
clean: ## Remove build/ and cargo's target/
	@rm -rf build
	@cargo clean
