# One word each. `make run` and `make test` do all the set-up by themselves.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q
MARK := $(VENV)/.installed

.PHONY: help setup run demo test check format proto bench bench-scale bench-peer crash simulation coverage fuzz soak conformance probe gate wheel pipeline pipeline-oldest image clean
help:
	@echo "run: set up and start a broker on 127.0.0.1:8081"
	@echo "demo: a tour: a thousand messages, one redelivery, one dead letter"
	@echo "test: the default test suite"
	@echo "check: linters, types, import rules, generated code"
	@echo "format: format the sources"
	@echo "crash simulation fuzz soak conformance pipeline: longer tests, by subject"
	@echo "probe pipeline-oldest coverage: questions of others, the oldest Spark, branch coverage"
	@echo "bench bench-scale bench-peer: measurements; docs/performance.md"
	@echo "image: the image's commands, from an environment filled by the Dockerfile's own; needs an index"
	@echo "proto gate wheel: generated code, the native front, a wheel of it"
	@echo "clean: remove what was built here"

# The virtual environment with what running needs; quick when nothing changed.
$(MARK)-run: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no virtual environment: install Python 3.11 with venv (Debian: apt-get install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server]'
	@touch $@

# The same with what checking and testing need.
$(MARK)-dev: pyproject.toml $(MARK)-run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(MARK)-run gate

# The native front, where cargo is there to build it; otherwise one line says what is missing.
gate: $(MARK)-run
	@if [ -f gate/build.sh ]; then bash gate/build.sh $(BIN)/python; fi

# A wheel of the native front, for the container image.
wheel: $(MARK)-dev
	@$(BIN)/python -m maturin build --quiet --release --locked --manifest-path gate/py/Cargo.toml --out dist

run: setup
	@exec $(BIN)/cosmodrome serve --dev $(ARGS)

demo: setup
	@$(BIN)/python examples/demo.py $(ARGS)

check: $(MARK)-dev gate
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python proto/generate.py --check && $(PYTEST) tests/test_tidy.py

test: $(MARK)-dev gate
	@$(PYTEST) $(ARGS)

format: $(MARK)-dev
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

proto: $(MARK)-dev
	@$(BIN)/python proto/generate.py

bench: $(MARK)-dev gate
	@$(BIN)/python -m benchmarks.run $(ARGS)

bench-scale: $(MARK)-dev
	@$(BIN)/python -m benchmarks.scale $(or $(ARGS),stored)

bench-peer: $(MARK)-dev gate
	@$(BIN)/python -m benchmarks.peer $(ARGS)

# Processes that are killed, a million delayed messages among them; and 10^5 power cuts, 20,000 flipped
# bits, 1,000 failing syncs and a log cut at every byte of its last 64 KiB, on a disk that is simulated.
crash: $(MARK)-dev gate
	@$(PYTEST) -m 'slow or not slow' tests/crash $(ARGS)
	@$(PYTEST) -m 'slow or not slow' tests/server/store/test_power_cuts.py tests/server/store/test_faults.py tests/server/store/test_scanner.py tests/server/store/test_recovery.py $(ARGS)

simulation: $(MARK)-dev
	@$(PYTEST) -m 'slow or not slow' tests/simulation
	@$(BIN)/python -m tests.simulation $(ARGS)

# Branches of what must not be wrong, all of them: frame codec, recovery, timers, leases.
CORE := server/cosmodrome_server
COVERED := $(CORE)/store/frame.py,$(CORE)/store/record.py,$(CORE)/store/scanner.py,$(CORE)/store/recovery.py,$(CORE)/store/patience.py,$(CORE)/core/timer.py,$(CORE)/core/timer_slot.py,$(CORE)/core/uncopied.py,$(CORE)/broker/timer_verbs.py,$(CORE)/broker/bucket_worker.py,$(CORE)/store/timer_bucket.py,$(CORE)/core/done_set.py,$(CORE)/core/progress_row.py
LEASES := $(CORE)/core/consumption.py,$(CORE)/core/consumptions.py,$(CORE)/core/delivery_runs.py,$(CORE)/core/lease.py,$(CORE)/core/resting.py,$(CORE)/core/progress.py,$(CORE)/core/settle.py
coverage: $(MARK)-dev
	@$(BIN)/python -m coverage run --branch --include="$(COVERED),$(LEASES)" -m pytest -q tests/server/store tests/server/core tests/server/broker
	@$(BIN)/python -m coverage report --show-missing --include="$(COVERED),$(LEASES)" --fail-under=100

fuzz: $(MARK)-dev gate
	@$(PYTEST) -m 'slow or not slow' tests/fuzz $(ARGS)

soak: $(MARK)-dev gate
	@$(PYTEST) -m slow tests/soak $(ARGS)

conformance: $(MARK)-dev gate
	@$(PYTEST) -m 'slow or not slow' tests/conformance $(ARGS)

# Questions of others about the protocol, on both fronts: make probe PROBE=FOLDER, with a probe.py in it.
probe: $(MARK)-dev gate
	@for front in gate grpcio; do echo $$front; $(BIN)/python -m tests.conformance.probe $(or $(PROBE),probe) --front $$front --slow $(ARGS) || exit 1; done

pipeline: $(MARK)-dev gate
	@$(PYTEST) -m 'slow or not slow' tests/pipeline $(ARGS)

# The oldest Spark that is supported, over everything else of the environment.
OLDEST := 4.2.1
OLD := $(VENV)/spark-$(OLDEST)
pipeline-oldest: $(MARK)-dev gate
	@test -x $(OLD)/bin/python || $(BIN)/python -m venv $(OLD)
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$site')" > $$($(OLD)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth
	@$(OLD)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps pyspark==$(OLDEST)
	@$(OLD)/bin/python -c 'import pyspark; assert pyspark.__version__ == "$(OLDEST)", pyspark.__file__'
	@$(OLD)/bin/python -m pytest -q tests/pipeline $(ARGS)

# What the image, the compose file and the unit start, from an environment that the Dockerfile's own
# commands fill: no engine of containers needed, but an index of packages.
image: $(MARK)-dev gate
	@$(PYTEST) -m 'slow or not slow' tests/deploy $(ARGS)

clean:
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
