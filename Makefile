# Two commands for newcomers: `make demo` shows the anomaly on real servers, `make test` tests everything.

HARNESS := target/x86_64-unknown-linux-gnu/debug/harness
# One flag set for everything that is built here, so that nothing is built twice.
CARGO := cargo
REPRODUCED := lock=violated,lock.stale_holder>=1,lock.unexplained=0,off.data.lost_updates>=1,writes.fence.stale_rejected>=1,writes.fence.stale_accepted=0,reads.fence.stale_accepted=0

.PHONY: help demo test accept mutants setup build

help:
	@echo 'make demo     show a double-holder window on five real Redis nodes (packages and images included); simulated without Docker'
	@echo 'make test     format, lints, docs, unit and property tests, then each real run once'
	@echo 'make accept   the counted runs: docs/acceptance*.md, docs/findings (about five hours; an interrupted one goes on)'
	@echo 'make mutants  every planted mistake in the checker must be caught by its tests'

demo: setup build
	$(HARNESS) run --cluster $(if $(CI),docker,auto) --nemesis pause --backend redlock --expect '$(REPRODUCED)'

# Without `build`: the tests build the binary, with the features that they need, and what was built before would be built again.
test: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) test --workspace
	@if [ "$$(id -u)" = 0 ]; then \
		$(CARGO) test --workspace --test net -- --ignored; \
	else \
		echo "NOT ROOT: the tests of packet faults in network namespaces were LEFT OUT." >&2; \
		test -z "$$CI"; \
	fi
	@if said=$$($(HARNESS) clean 2>&1); then \
		echo "$$said" && \
		$(CARGO) test --workspace --test docker -- --ignored --test-threads=1 && \
		$(CARGO) test --workspace --test runs -- --ignored --test-threads=2; \
	elif ! echo "$$said" | grep -q 'no Docker engine answers'; then \
		echo "$$said" >&2; \
		echo "THE DOCKER ENGINE IS THERE, BUT CANNOT BE USED." >&2; \
		false; \
	else \
		echo "$$said" >&2; \
		left=$$($(CARGO) test -q --workspace --test docker --test runs -- --ignored --list); \
		left=$$(echo "$$left" | grep -c ': test$$'); \
		echo "NO DOCKER ENGINE ANSWERS: $$left tests and runs on real servers were LEFT OUT." >&2; \
		test -z "$$CI"; \
	fi

# The outcomes are kept for each build, so an interrupted `make accept` goes on where it was. A part that fails stops no other.
accept: setup build
	$(CARGO) build --quiet --release
	@kept=runs/accept-$$(sha256sum $(HARNESS) | cut -c1-12); worst=0; \
	scripts/accept $(HARNESS) $$kept docs/acceptance.md || worst=1; \
	scripts/accept-kills $(HARNESS) $$kept docs/acceptance-kills.md || worst=1; \
	scripts/accept-sim $(subst debug,release,$(HARNESS)) $(HARNESS) $$kept docs/acceptance-sim.md || worst=1; \
	scripts/accept-claims $(HARNESS) $$kept || worst=1; \
	exit $$worst

mutants: setup
	checker/mutants/run --log target/mutants.log

build:
	$(CARGO) build --quiet

setup:
	@scripts/setup
