PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
TOOLS := .tools

# The environment is ours: what hundreds of processes import is compiled once, whatever the shell says of bytecode.
unexport PYTHONDONTWRITEBYTECODE

# uv takes a third of pip's time and knows none of its settings: where these name an index, or uv fails, pip installs.
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt
install-all = { ! $(BIN)/pip config list | grep -q '\.index-url' && $(UV) --editable $(1); } || $(PIP) --editable $(1)
FOR_DEMO := '.[video,image,report]'
FOR_TESTS := '.[test,lint,docs,privacy]'

.PHONY: install demo test test-all lint docs sbom audit clean

install: $(READY)

# torch first and by its exact version: a looser wish takes a build with gigabytes of CUDA where a CPU build would do.
$(DEMO): pyproject.toml constraints.txt
	@echo "installing into $(VENV), about 2 GB with the CPU build of torch: a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile torch
	@$(PIP) uv || true
	@UV_COMPILE_BYTECODE=1; export UV_COMPILE_BYTECODE; $(call install-all,$(FOR_DEMO))
	touch $(DEMO)

# Not compiled: most of these files are never imported, and Python compiles the others when they are.
$(READY): $(DEMO)
	@PIP_NO_COMPILE=1; export PIP_NO_COMPILE; $(call install-all,$(FOR_TESTS))
	touch $(READY)

# It installs what it needs and no more.
demo: $(DEMO)
	$(BIN)/descend demo --out demo

# Two files at a time, each on one thread: that is faster than one on two.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test: install
	$(PYTEST) -m "not slow"

test-all: install
	$(PYTEST)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tutorials run while the site is built, on one thread: more only wait for each other where the machine is busy.
docs: install
	@echo "building the site; its tutorials train small models, which takes a few minutes"
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -b html docs docs/build/html
	@echo "open docs/build/html/index.html"

# In an environment of their own: they look at the project's, and are no part of it.
$(TOOLS)/.ready:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet 'cyclonedx-bom>=7,<8' 'pip-audit>=2.9'
	touch $@

sbom: install $(TOOLS)/.ready
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.json $(BIN)/python
	@echo "sbom.json: $$(grep -c '"purl"' sbom.json) packages of $(VENV), CycloneDX"

audit: install $(TOOLS)/.ready
	@$(TOOLS)/bin/pip-audit --skip-editable --timeout 5 --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
		>audit.txt 2>&1; found=$$?; cat audit.txt; skipped=$$(grep -c 'could not be audited' audit.txt); \
	if [ $$skipped -gt 5 ]; then echo "make audit: PyPI's advisories can't be reached: $$skipped packages are not audited." >&2; exit 1; fi; \
	exit $$found

clean:
	rm -rf $(VENV) $(TOOLS) docs/build docs/gallery docs/tutorials/runs sbom.json audit.txt demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
