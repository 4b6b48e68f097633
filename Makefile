# Two commands for a newcomer: `make demo` and `make test`. Each makes what it lacks.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Where the tests keep the training environment and their state between runs.
TEST_HOME := $(CURDIR)/build/test-home
# Three processes: many tests wait for services and trials, and leave a core idle.
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test test-long check unit lock clean

help:
	@echo 'make demo       find, explain and report a real out-of-memory regression on this machine'
	@echo 'make test       prove the code: style, types, structure, tests on real Megatron Bridge'
	@echo 'make test-long  the checks that take long; docs/how-to/develop.md says what they cover'
	@echo 'make setup      only make the development environment in $(VENV)'
	@echo 'make lock       renew requirements.lock from pyproject.toml'

setup: $(READY)

$(READY): pyproject.toml requirements.lock scripts/setup.sh
	@bash scripts/setup.sh $(VENV)
	@touch $(READY)

demo: setup
	@$(BIN)/firstbad demo $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED))

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=bisect:. $(BIN)/lint-imports

unit: setup
	$(BIN)/pytest tests/unit

test: check
	bash scripts/with_megatron.sh $(BIN) "$(TEST_HOME)" $(BIN)/pytest -m 'not long' $(SIDE_BY_SIDE)

test-long: check
	bash scripts/with_megatron.sh $(BIN) "$(TEST_HOME)" $(BIN)/pytest -m long

lock: setup
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-package firstbad \
	  --extra dev --extra worker --extra postgresql pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-package firstbad -c requirements.lock \
	  --extra postgresql pyproject.toml -o docker/service.lock
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-package firstbad -c requirements.lock \
	  --extra worker --extra postgresql pyproject.toml -o docker/worker.lock
	$(BIN)/uv pip compile -q --universal --generate-hashes docker/build.in -o docker/build.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
