# Two commands for newcomers: `make demo` shows the anomaly on real servers, `make test` tests everything.

HARNESS = target/$(shell rustc -vV | sed -n 's/^host: //p')/debug/harness
IMAGE ?= harness:latest
RELEASE = $(subst debug,release,$(HARNESS))
# One flag set for everything that is built here, so that nothing is built twice.
CARGO := cargo
ROOT := $(filter 0,$(shell id -u))
# Many tests wait for servers and timers most of the time.
THREADS := $(shell echo $$((2 * $$(nproc))))
REPRODUCED := lock=violated,lock.stale_holder>=1,lock.unexplained=0,off.data.lost_updates>=1,writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0,reads.fence.stale_accepted=0

.PHONY: help demo test test-local dynamodb parquet accept mutants bench stores check checkers recorder executors keys image setup setup-test setup-accept build

help:
	@echo 'make demo     show a double-holder window on five real Redis nodes (packages and images included); simulated without Docker'
	@echo 'make test     format, lints, docs, unit and property tests, then runs of every lock, fault and resource on real servers'
	@echo 'make test-local  the part of `make test` that needs neither Docker nor root; `scripts/setup test` prepares it'
	@echo 'make dynamodb  lints and tests of the backend dynamodb, whose AWS SDK is not in the default build; needs Docker'
	@echo 'make parquet  lints and tests of the Parquet export, whose crates are not in the default build'
	@echo 'make accept   the counted runs: docs/acceptance*.md, docs/findings (about 90 minutes; an interrupted one goes on)'
	@echo 'make image    a container image with nothing but the harness; IMAGE=NAME names it (harness:latest)'
	@echo 'make mutants  every planted mistake in the checker must be caught by its tests'
	@echo 'make bench    the Redlock client beside the crate rslock and beside raw PINGs, as ratios of one run'
	@echo 'make stores   the clients of etcd, Postgres and ZooKeeper beside the requests that no client can do without'
	@echo 'make check    how fast a record is read and judged, beside a plain read of the same file'
	@echo 'make checkers longer and longer records, judged by this checker and by others'
	@echo 'make recorder how many events a second the recorder takes from workers in containers; needs Docker'
	@echo 'make executors  the event loop of the simulation beside paused Tokio and turmoil, on one workload'
	@echo 'make keys     what a short lock on each of KEYS keys (100000) costs a Redis server: memory, expiry, what is left'

demo: build
	$(HARNESS) run --cluster $(if $(CI),docker,auto) --nemesis pause --backend redlock --expect '$(REPRODUCED)'

# Without `build`: the tests build the binary, with the features that they need, and what was built before would be built again.
test: setup-test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) test --workspace --no-run
	@scripts/with-images $(HARNESS) $(MAKE) --no-print-directory test-local
	@if [ -n "$(ROOT)" ]; then \
		$(CARGO) test --workspace --test net --test power -- --ignored; \
	else \
		echo "NOT ROOT: the tests of packet faults and of lost power in namespaces, and those that reach into the processes of servers, were LEFT OUT." >&2; \
		test -z "$$CI"; \
	fi
	@if said=$$($(HARNESS) clean 2>&1); then \
		echo "$$said" && \
		$(CARGO) test --workspace --test docker -- --ignored --test-threads=1 && \
		$(CARGO) test --workspace --test runs -- --ignored --test-threads=3 --skip ::long:: --skip searches:: $(if $(ROOT),,--skip as_root::); \
	elif ! echo "$$said" | grep -q 'no Docker engine answers'; then \
		echo "$$said" >&2; \
		echo "THE DOCKER ENGINE IS THERE, BUT CANNOT BE USED." >&2; \
		false; \
	else \
		echo "$$said" >&2; \
		left=$$($(CARGO) test -q --workspace --test docker --test runs -- --ignored --skip ::long:: --skip searches:: --list); \
		left=$$(echo "$$left" | grep -c ': test$$'); \
		echo "NO DOCKER ENGINE ANSWERS: $$left tests and runs on real servers were LEFT OUT." >&2; \
		test -z "$$CI"; \
	fi

# The tests that need neither Docker nor root. While they run, `make test` makes the images for the other tests.
test-local:
	ORACLE_ALL=1 RUST_TEST_THREADS=$(THREADS) $(CARGO) test --workspace
	$(CARGO) test --workspace --test runs -- --ignored searches::
	@scripts/report-in-chromium --harness $(HARNESS) || { test $$? = 77 && test -z "$$CI"; }
	@scripts/check-ci --harness $(HARNESS) || { test $$? = 77 && test -z "$$CI"; }

# A build of its own: the AWS SDK costs more than the rest of `make test` can spare.
dynamodb: setup
	$(CARGO) clippy --package locks --package harness --all-targets --features dynamodb -- -D warnings
	$(CARGO) test --package locks --features dynamodb,planted --test it dynamodb
	$(CARGO) test --package harness --features dynamodb --test runs -- --ignored --test-threads=1 dynamodb::

# A build of its own: no other command needs these crates.
parquet: setup
	$(CARGO) clippy --package harness --all-targets --features parquet -- -D warnings
	$(CARGO) test --package harness --features parquet export::

# The outcomes are kept for each build and its suites, so an interrupted `make accept` goes on where it was.
accept: setup-accept
	scripts/check-aarch64
	$(CARGO) build --quiet --release
	@exec scripts/accept $(RELEASE) runs/accept-$$(cat $(RELEASE) suites/*.toml suites/*/*.toml | sha256sum | cut -c1-12)

bench:
	@scripts/setup test
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin redlock

# Needs etcd, Postgres, Java and ZooKeeper on this machine. More flags in STORES_FLAGS, for example `--services etcd`.
stores:
	@scripts/setup test
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin stores -- $(STORES_FLAGS)

# More flags in CHECK_FLAGS, for example `--keys 10000 --clients 256`.
check:
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin check -- $(CHECK_FLAGS)

# Porcupine takes part with CHECKERS_FLAGS='--porcupine PROGRAM': PROGRAM is what `go build` makes in bench/porcupine.
checkers:
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin checkers -- $(CHECKERS_FLAGS)

# More flags in RECORDER_FLAGS, for example `--workers 2 --rate 100000`.
recorder: setup
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin recorder -- $(RECORDER_FLAGS)

# More flags in EXECUTORS_FLAGS, for example `--pairs 100`, or `--instructions`, which needs valgrind.
executors:
	$(CARGO) run --release --manifest-path bench/Cargo.toml --features executors --bin executors -- $(EXECUTORS_FLAGS)

# More flags in KEYS_FLAGS, for example `--backend etcd`; docs/keys.md.
KEYS ?= 100000
keys:
	@scripts/setup test
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin keys -- --keys $(KEYS) $(KEYS_FLAGS)

image: setup
	$(CARGO) build --quiet --release
	scripts/image $(RELEASE) $(IMAGE)

mutants: setup
	checker/mutants/run --log target/mutants.log

build: setup
	$(CARGO) build --quiet

setup:
	@scripts/setup

# Targets of their own: make expands all lines of a recipe before the first one runs. HARNESS in a line needs Rust, which these install.
setup-test:
	@scripts/setup test

setup-accept:
	@scripts/setup accept
