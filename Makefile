# `make run` and `make test` are all that a newcomer needs; both prepare what is missing and are safe to run again.

PYTHON_HERE := .venv/bin/python
# An open() that leaves the encoding to the locale is a bug; as a warning it is an error in the tests.
PYTEST := PYTHONWARNDEFAULTENCODING=1 $(PYTHON_HERE) -m pytest

.PHONY: run test test-all lint bench setup setup-test clean

run: setup  ## the main job for real, hostile tools included
	@$(PYTHON_HERE) scripts/demo.py

test: lint  ## all checks, and all tests that take less than 20 s each
	$(PYTEST) -m "not slow"

test-all: lint  ## the slow tests too
	$(PYTEST)

lint: setup-test
	$(PYTHON_HERE) -m ruff check .
	$(PYTHON_HERE) -m mypy

bench: setup  ## figures as JSON lines, each beside its floor
	@$(PYTHON_HERE) bench/run.py

setup:
	@scripts/setup.sh

setup-test:
	@scripts/setup.sh test

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
