# make quickstart   set up what is missing, then train (again: resume; FRESH=1: start over)
# make test         set up what is missing, then lint, types and the whole test suite
.DELETE_ON_ERROR:
.PHONY: setup quickstart test lint types format bench lock clean distclean

PYTHON_BIN := .venv/bin/python
# More for the command line of the main job: make quickstart ARGS="seed=1 num_steps=5"
ARGS ?=

setup:
	@./setup.sh

quickstart: setup
	$(PYTHON_BIN) -m wc_jax.train configs/quickstart.yaml $(if $(filter-out 0,$(FRESH)),fresh=true) $(ARGS)

test: setup lint types
	$(PYTHON_BIN) -m pytest $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

types: setup
	.venv/bin/mypy

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: setup
	@for script in tests/benchmarks/bench_*.py; do echo "== $$script"; $(PYTHON_BIN) $$script || exit 1; done

# After a change of pyproject.toml's dependencies. Needs uv.
lock: setup
	uv pip compile pyproject.toml --extra train --extra docker --extra dev --universal --python-version 3.11 \
	    --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links -o locks/trainer.txt

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv*' -not -path './.toolchain/*' -prune -exec rm -rf {} +

# Also the environments; the next `make setup` makes them anew. Runs are never touched.
distclean: clean
	rm -rf .venv .venv-engine .toolchain
