# `make train` and `make test` need Python >= 3.11 and make; they set up everything else themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ARGS   ?=

.PHONY: train test check docs chromium clean
.DELETE_ON_ERROR:

train: $(VENV)/.installed
	$(BIN)/gradwire train $(ARGS)

test: $(VENV)/.installed-test chromium
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile $(ARGS)

check: $(VENV)/.installed-dev build/typing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=build/typing $(BIN)/mypy $(foreach p,$(PACKAGES),-p gradwire.$(p))
	PYTHONPATH=build/typing $(BIN)/lint-imports --no-cache

# The docs as a site: build/site/index.html. A warning, such as a link that leads nowhere, is an error.
docs: $(VENV)/.installed-docs build/typing
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Reports are tested in Debian's Chromium. Where it is missing and cannot be installed, these tests are skipped and say so.
chromium:
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || { \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "chromium could not be installed: the tests of reports will be skipped"

PACKAGES := comm schedulers checkpoint inference trainer

# Type checkers and import-linter do not follow setuptools' package-dir mapping: give them a tree of links that does.
build/typing: Makefile
	rm -rf $@ && mkdir -p $@/gradwire
	for p in $(PACKAGES); do ln -s ../../../$$p $@/gradwire/$$p; done

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gradwire needs Python 3.11 or newer, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)

# torch goes first: pinned, so that no other package pulls a larger build of it.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(PIP) -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[docs]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.installed-test $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info
