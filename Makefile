# make demo: train the example. make test: run every test. Both set up what they need in .venv.
# Tests run side by side; each is the same whatever ran before it in its process.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/installed
	$(BIN)/python examples/train_moe.py

test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks grouped --quick

lint: $(VENV)/installed
	$(BIN)/python -m pip install -q --group lint
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/python tests/floors.py

$(VENV)/installed: pyproject.toml setup.py CMakeLists.txt $(shell find csrc -type f)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build jax_fuser/_core*.so jax_fuser/_core.pyi
