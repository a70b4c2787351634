PYTHON ?= python3
BIN := .venv/bin
KILLS ?= 200
JOBS ?= 1
# bytecode is kept: tests start some sixty processes
TESTS := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 SYMPY_CACHE_SIZE=100000 $(BIN)/python

.PHONY: demo check test slow roundings versions lint format stock docs wheel scorecard calibration bench gpu crashtest papers clean

demo: .venv/ready
	$(BIN)/python examples/demo.py --out out/demo

check: .venv/ready
	$(TESTS) tests/nearest.py $(FILES)

test: .venv/ready
	$(TESTS) -m pytest --numprocesses auto --dist worksteal

slow: .venv/ready
	$(TESTS) -m pytest --numprocesses auto --dist worksteal -m slow $(FILES)

roundings: .venv/ready
	$(BIN)/python tests/roundings.py $(NAMES)

versions:
	$(PYTHON) tests/versions.py $(NAMES)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stock: .venv/ready
	$(BIN)/python tests/stock_lines.py

docs: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python examples/website/build.py --out out/docs

wheel: .venv/ready
	PYTHON=$(PYTHON) .ci/wheel out/wheel

.venv/ready: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -qq --upgrade pip
	$(BIN)/pip install -qq --constraint .ci/constraints.txt --editable '.[demo,dev]'
	touch $@

clean:
	rm -rf .venv out

scorecard: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/scorecard.py --out out/scorecard

calibration: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/calibration.py

bench: .venv/ready
	$(BIN)/python tests/benchmarks/bench.py --out out/bench.json

papers: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python examples/papers/run.py $(if $(DATA),--data $(DATA)) --jobs $(JOBS) $(NAMES)

gpu:
	PYTHON=$(PYTHON) .ci/gpu

crashtest: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/crashes.py --kills $(KILLS)
