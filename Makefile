# make demo: from nothing to a trained model.    make test: every test.    make clean: removes the environment.
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
# As pip does, but on all cores. What is no Python of today, which some packages carry, is left as it is.
COMPILE = $(VENV)/bin/python -m compileall -qq --workers 0 $(VENV)/lib || true

.PHONY: demo test install clean

demo: $(VENV)/.installed
	$(VENV)/bin/t5xpg demo

test: $(VENV)/.beam $(VENV)/.hf $(VENV)/.browser
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy & types=$$!; \
	$(VENV)/bin/python -m pytest tests --numprocesses auto --dist loadfile --no-loadscope-reorder && wait $$types

install: $(VENV)/.installed

# Exactly the versions that were tested; `pip install t5xpg` alone takes the newest.
$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	@echo "Installing into $(VENV) (about 2 minutes and 3.5 GB) …"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[dev]'
	@$(COMPILE)
	@touch $@

# For one test, and large: apart, so that the demo does without.
$(VENV)/.beam: $(VENV)/.installed tests/beam.txt
	$(PIP) --no-deps -r tests/beam.txt
	@touch $@

# PyTorch, to compare with. On Linux the registry's build brings 3 GB of CUDA libraries; where pip is told of a CPU build
# (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL), it takes that.
$(VENV)/.hf: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[hf]'
	@$(COMPILE)
	@touch $@

# Looks at the pages of `t5xpg inspect` and `t5xpg report`. Debian's, where root may install it and there is none.
$(VENV)/.browser: $(VENV)/.installed
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update \
		&& DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends chromium >/dev/null; then :; \
	else echo "No Chromium here, and none was installed: the tests that look at pages in a browser are skipped."; fi
	@touch $@

clean:
	rm -rf $(VENV)
