# podwright: every command a developer or the build server needs. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build release install uninstall lint test man test-vm test-peers peers debs bench fuzz soak demo ci clean

export PODWRIGHT_CACHE ?= $(HOME)/.cache/podwright
# What could not run is noted here and named at the end; on the build server (CI=true) it fails the run.
export PODWRIGHT_SKIPPED ?= $(PODWRIGHT_CACHE)/skipped.$(shell echo $$PPID)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: ## the agent, for development
	@hack/need cargo
	cargo build -p podwright

release: ## the agent as it is shipped: small and stripped (12 min)
	@hack/need cargo
	cargo build --release -p podwright

# PREFIX=/usr for a package; DESTDIR is put before every path. PODWRIGHT is the binary to install.
PREFIX ?= /usr/local
PODWRIGHT ?= $(or $(CARGO_TARGET_DIR),target)/release/podwright

install: ## the agent, its unit, manual pages and completions, below DESTDIR and PREFIX; `make release` first
	@hack/install install "$(DESTDIR)" "$(PREFIX)" "$(PODWRIGHT)"

uninstall: ## remove what install has installed; pods, images and settings of the host stay
	@hack/install uninstall "$(DESTDIR)" "$(PREFIX)"

lint: ## format, clippy, docs, dependency rules, every crate on its own (6 min)
	@hack/need cargo
	@hack/timed lint 6 hack/lint

test: ## everything that needs only crates and Debian packages (15 min)
	@hack/need cargo cc root
	@hack/timed test 15 hack/test

man: ## generate the manual pages and docs/FIELDS.md from the code
	@hack/need cargo
	PODWRIGHT_BLESS=1 cargo test --quiet -p podwright --bin podwright man::
	PODWRIGHT_BLESS=1 cargo test --quiet -p podwright-core --lib fields::

test-vm: ## what needs another kernel or cgroup v2, in a qemu VM (6 min)
	@hack/need cargo cc
	@hack/timed test-vm 6 hack/vm/test

test-peers: peers ## the suites against containerd 1.6 and 2.x and the Go kubelet, critest on the engine (25 min)
	@hack/need cargo cc root
	@hack/timed test-peers 25 hack/suite peers

peers: ## build the Go programs we are compared with, into the cache
	@hack/timed peers 35 hack/peers

debs: ## unpack the Debian programs the tests start, into the cache
	@hack/debs runtime registry nftables shells

bench: peers ## latencies and costs, beside the Go kubelet and the bare runtime
	@hack/need cargo cc root
	@hack/timed bench 60 hack/bench

fuzz: ## hostile and damaged input, 30 s for each target; PODWRIGHT_FUZZ_SECONDS for more (4 min)
	@hack/need cargo cc
	@hack/timed fuzz 4 hack/fuzz

soak: peers ## the long versions of the tests, and an hour of fuzzing for each target
	@hack/need cargo cc root
	@hack/timed soak 540 hack/soak

demo: ## a pod with a web server, a sidecar and a probe, from manifest to nothing left
	@hack/need cargo cc root
	@hack/demo

ci: ## what the build server runs: lint, test, test-vm, test-peers
	@hack/timed ci 51 $(MAKE) -k --no-print-directory lint test test-vm test-peers

clean: ## remove what was built; the cache of tools stays
	cargo clean
	@echo "the cache of tools is $(PODWRIGHT_CACHE); it may be removed by hand"
