# Two commands do everything on a fresh machine; each makes its virtual environment if there is none.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: run test slow lint docs

run: $(VENV)/installed
	$(BIN)/uqbench run --methods nuqls,de,lla

test: $(VENV)/installed
	$(BIN)/pytest -m "not slow"

slow: $(VENV)/installed
	$(BIN)/pytest -m slow

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# the site is in build/site; search needs it to be served: python -m http.server -d build/site
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

$(VENV)/docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet "uqbench[docs]"
	touch $@

# The package is built into a wheel and installed, not linked: what is tested is what users get.
$(VENV)/installed: pyproject.toml $(wildcard uqbench/*.py uqbench/*/*.py methods/*.py metrics/*.py datasets/*.py datasets/suites/*.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps --force-reinstall .
	touch $@
