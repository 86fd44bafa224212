# Thin on purpose: each target is one script, which can be run by itself.
.PHONY: help build demo test nightly torture check format docs chaos kills fuzz aarch64 bench bench-checkpoint sbom clean

help:
	@echo 'make build   install what is missing, build the programs and the Python extension, link them into .venv'
	@echo 'make demo    train a small network from an object store on this machine (one to three minutes after the installs); STORE=s3: from tar shards on S3'
	@echo 'make test    every test but the nightly ones: C, Python, sanitizers, models (a quarter of an hour)'
	@echo 'make nightly the others: all mutants, kills, chaos, torture, fuzz, old torch (hours); PARTS="models chaos-s3" (docs/testing.md)'
	@echo 'make torture every call that can fail, failing, in each program; TORTURE="--scene cat" for a part (half an hour)'
	@echo 'make check   the fast loop before a commit: warnings, unit tests, formats, linters, types'
	@echo 'make format  rewrite what check compares: formats, docs/configuration.md'
	@echo 'make docs    the pages as a site with search and the Python API, in out/docs/html'
	@echo 'make aarch64 the tests of shm/ cross-compiled, under qemu-user (Debian; see docs/testing.md)'
	@echo 'make chaos   training while everything is killed, stopped and corrupted; MINUTES=60, DEATHS=1000, SEED=7, STORE=s3 (tests/chaos/)'
	@echo 'make kills   SIGKILLs over saves; KILLS=3000, SEED=7, STORE=s3|versitygw (docs/testing.md)'
	@echo 'make fuzz    each fuzz target with libFuzzer for a minute, and what it reached; SECONDS=10, TARGETS="json msg" (docs/testing.md)'
	@echo 'make bench   the benchmarks; BENCH=--quick for a short run (see bench/README.md)'
	@echo 'make bench-checkpoint  checkpoints: saving and loading, beside the field (see bench/README.md)'
	@echo 'make sbom    what the programs consist of, as CycloneDX: out/sbom.json'
	@echo 'make clean   remove build/, out/ and .venv'

build:
	@scripts/setup build
	@scripts/build

demo:
	@scripts/setup demo
	@scripts/build
	@.venv/bin/python scripts/demo.py $(if $(STORE),--store $(STORE))

test:
	@scripts/setup test
	@scripts/watchdog 2700 scripts/test

nightly:
	@scripts/setup nightly
	@scripts/build -DMR_TESTS=ON
	@scripts/nightly $(PARTS)

torture:
	@scripts/setup test
	@scripts/build -DMR_TESTS=ON
	@.venv/bin/python -m tests.torture.run $(TORTURE)

check:
	@scripts/setup test
	@scripts/check

format:
	@scripts/setup test
	@scripts/format

docs:
	@scripts/setup docs
	@scripts/docs

aarch64:
	@scripts/aarch64

chaos:
	@scripts/setup test
	@scripts/build
	@.venv/bin/python -m tests.chaos.run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(DEATHS),--deaths $(DEATHS)) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

kills:
	@scripts/setup test
	@scripts/build
	@[ "$(STORE)" != versitygw ] || scripts/test-servers >/dev/null
	@.venv/bin/python -m tests.e2e.checkpoint_kills $(or $(KILLS),3000) $(or $(SEED),$(shell date +%N)) $(STORE)

fuzz:
	@scripts/setup fuzz
	@.venv/bin/python scripts/fuzz.py $(if $(SECONDS),--seconds $(SECONDS)) $(TARGETS)

bench:
	@scripts/setup test
	@scripts/build
	@bench/peers
	@.venv/bin/python -m bench.run $(BENCH)

bench-checkpoint:
	@scripts/setup test
	@scripts/build
	@bench/peers
	@.venv/bin/python -m bench.checkpoint.run $(BENCH)
	@.venv/bin/python -m bench.checkpoint.budgets
	@.venv/bin/python -m bench.checkpoint.report

sbom: build
	@mkdir -p out
	@.venv/bin/python scripts/sbom.py >out/sbom.json
	@echo out/sbom.json

clean:
	rm -rf build out dist .venv
