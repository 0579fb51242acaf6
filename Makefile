# make book   builds the site            make test   runs every test, doctest and notebook
# Each starts from a bare clone: it creates .venv and installs what is missing, once.
#
#   PYTHON     the interpreter that .venv is made of (3.11 or newer)
#   PIP_ARGS   further options for pip, such as the index of PyTorch's CPU builds

PYTHON ?= python3
PIP_ARGS ?=
PORT ?= 8000
BIN := .venv/bin
SITE := _build/html
BOOK_SOURCES := $(shell find book mha_tutorial tests -type f -not -name '*.pyc') _config.yml _toc.yml

.PHONY: book serve model test test-site test-frameworks exercises notebooks lint format mutants edits bench bench-gpu clean help
.DELETE_ON_ERROR:

help:
	@echo "make book       build the site in $(SITE)"
	@echo "make serve      build it and serve it on http://localhost:$(PORT)"
	@echo "make model      fetch the trained model of the book (93 MB) into your cache"
	@echo "make test       unit tests, doctests and every notebook, compared output by output"
	@echo "make test-site  the built site in Chromium: every page, search, keyboard, print;  ALL=1  axe in every view"
	@echo "make test-frameworks  the layouts against transformers, Keras, Flax and Equinox, which it installs"
	@echo "make exercises  grade what you filled in in exercises/"
	@echo "make notebooks  execute the notebooks in place and normalise them"
	@echo "make lint       ruff and mypy;  make format  rewrites what ruff can"
	@echo "make bench      race the layers on this CPU, in minutes;  make bench-gpu  on its GPU"
	@echo "make edits      break the code once for every equation and every known fault: its test must fail"
	@echo "make mutants    break the code everywhere (mutmut), hours; PART=masks one part of it, SAMPLE=300 so many"
	@echo "make clean      remove everything that was built, .venv included"

$(BIN)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python has no venv module: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[all]"
	@touch $@

book: $(SITE)/.built
	@echo "The book: $(abspath $(SITE))/index.html"

$(SITE)/.built: $(BIN)/.installed $(BOOK_SOURCES)
	@rm -f $@
	$(BIN)/jupyter-book build . --all -W -n --keep-going
	$(BIN)/python tools/check_site.py $(SITE)
	@touch $@

serve: book
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(SITE)

model: $(BIN)/.installed
	$(BIN)/mha-tutorial model get

# Hypothesis draws the same inputs on every run (its profile "ci"); `pytest` alone draws new ones.
test: $(BIN)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --cov=mha_tutorial --hypothesis-profile=ci --ignore=tests/site

test-site: book
	MHA_SITE=required $(BIN)/python -m pytest -n logical --maxprocesses 4 --no-cov -p no:nbval tests/site

$(BIN)/.frameworks: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[frameworks]"
	@touch $@

test-frameworks: $(BIN)/.frameworks
	$(BIN)/python -m pytest tests/frameworks

exercises: $(BIN)/.installed
	$(BIN)/python -m pytest exercises/

notebooks: $(BIN)/.installed
	$(BIN)/python tools/notebooks.py

lint: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(BIN)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

edits: $(BIN)/.installed
	$(BIN)/python tools/edits.py

mutants: $(BIN)/.installed
	$(BIN)/python tools/mutation.py $(PART) $(if $(SAMPLE),--sample $(SAMPLE))

bench: $(BIN)/.installed
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/numpy_fast.py
	$(BIN)/python benchmarks/numpy_layer.py
	$(BIN)/python benchmarks/cache.py

bench-gpu: $(BIN)/.installed
	$(BIN)/python benchmarks/gpu.py

clean:
	rm -rf .venv _build mutants .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
