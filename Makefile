# make quickstart   set up what is missing, then train (again: resume; FRESH=1: start over)
# make test         set up what is missing, then lint, types and the whole test suite
.DELETE_ON_ERROR:
.PHONY: setup quickstart test lint types format bench bench-setup plans plan-setup lock bench-lock plan-lock clean distclean

PYTHON_BIN := .venv/bin/python
UV = $(firstword $(wildcard .toolchain/uv/bin/uv) uv)
# Where torch's CPU build comes from: the folders that pip was told of, else from where uv knows it to be.
CPU_TORCH = $(if $(PIP_FIND_LINKS),$(addprefix --find-links ,$(PIP_FIND_LINKS)),--torch-backend cpu)
# More for the command line of the main job: make quickstart ARGS="seed=1 num_steps=5"
ARGS ?=
# Tests that run at once. Each takes up to 3 GB, and starts what it needs: model server, browser, sandboxes.
WORKERS ?= 2

setup:
	@./setup.sh

quickstart: setup
	$(PYTHON_BIN) -m wc_jax.train configs/quickstart.yaml $(if $(filter-out 0,$(FRESH)),fresh=true) $(ARGS)

# A file's tests stay together: some share a server, some go in order.
test: setup lint types
	$(PYTHON_BIN) -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/shellcheck -x setup.sh .ci/run gpu/*.sh gpu/job.sbatch tpu/*.sh

types: setup
	.venv/bin/mypy

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: setup bench-setup
	@for script in tests/benchmarks/bench_*.py; do echo "== $$script"; \
	    $(PYTHON_BIN) -m tests.benchmarks.$$(basename $$script .py) || exit 1; done

# The peers that B1 compares with, each in an environment of its own (1.3 GB each).
bench-setup: setup .venv-bench-torch/.done .venv-bench-tunix/.done

.venv-bench-%/.done: locks/bench-%.txt
	$(UV) venv --quiet --clear --python $(PYTHON_BIN) .venv-bench-$*
	$(UV) pip sync --quiet --python .venv-bench-$*/bin/python --require-hashes \
	    $(CPU_TORCH) $<
	touch $@

# docs/plans.md: the three papers' recipes, compiled for pods that are not there. Takes an hour on 2 cores.
plans: setup plan-setup
	$(PYTHON_BIN) -m wc_jax.planning.table docs/plans.md

# The compilers for TPUs and for NVIDIA GPUs, each in an environment of its own (the second has 6 GB).
plan-setup: setup .venv-plan-tpu/.done .venv-plan-gpu/.done

.venv-plan-%/.done: locks/plan-%.txt
	$(UV) venv --quiet --clear --python $(PYTHON_BIN) .venv-plan-$*
	$(UV) pip sync --quiet --python .venv-plan-$*/bin/python --require-hashes $<
	touch $@

# After a change of pyproject.toml's dependencies. Needs uv.
lock: setup
	uv pip compile pyproject.toml --extra train --extra docker --extra kubernetes --extra dev --universal --python-version 3.11 \
	    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links -o locks/trainer.txt

# After a change of locks/bench-*.in. The engine's overrides keep out what only a GPU needs.
bench-lock:
	for name in bench-torch bench-tunix; do $(UV) pip compile --quiet locks/$$name.in \
	    --overrides locks/engine-overrides.txt --python-version 3.11 --python-platform x86_64-manylinux_2_34 \
	    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links $(CPU_TORCH) -o locks/$$name.txt; done

# After `make lock`, whose versions these keep.
plan-lock: setup
	for name in tpu gpu; do $(UV) pip compile --quiet pyproject.toml --extra train --extra plan-$$name \
	    --constraints locks/trainer.txt --python-version 3.11 --python-platform x86_64-manylinux_2_34 \
	    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links -o locks/plan-$$name.txt; done

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv*' -not -path './.toolchain/*' -prune -exec rm -rf {} +

# Also the environments; the next `make setup` makes them anew. Runs are never touched.
distclean: clean
	rm -rf .venv .venv-engine .venv-bench-torch .venv-bench-tunix .venv-plan-tpu .venv-plan-gpu .toolchain
