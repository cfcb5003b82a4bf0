# make demo: install, then the digits demo.   make demo-all: all methods, three seeds.
# make test: the whole suite.   make lint: ruff and mypy.   make stress: the long forms of what must not break, hours.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo demo-all test lint format readme stress clean

demo: $(VENV)/.installed
	$(BIN)/eow demo --out runs/demo

demo-all: $(VENV)/.installed
	$(BIN)/eow demo --all --seeds 3 --out runs/demo-all

# One process a core; a file's tests stay together, for they share what was trained for them.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

readme: $(VENV)/.installed
	$(BIN)/python benchmarks/readme.py

stress: export OMP_NUM_THREADS = 1
stress: export EOW_DEVICE = cpu
stress: export EOW_STRESS = 1
stress: $(VENV)/.installed-test
	$(BIN)/python benchmarks/stress.py train --kills 50
	$(BIN)/python benchmarks/stress.py bench --kills 50
	$(BIN)/python benchmarks/stress.py signals --kills 5
	$(BIN)/python benchmarks/fuzz.py --count 10000
	$(BIN)/python -m pytest tests/test_scale.py
	nice -n 19 $(BIN)/python benchmarks/stress.py soak --minutes 30

# A stamp marks a finished install, so that an interrupted one is repeated and a finished one is not.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
