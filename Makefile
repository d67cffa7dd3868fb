# hetero: `make demo` and `make test` do everything, set-up included. `make help` lists the rest.

JOBS ?= $(shell nproc)
export JOBS
PYTHON_BIN := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup build product demo check test test-full test-gpu test-libraries sim-fuzz load-fuzz fuzz calls bench bench-partition serve-demo qwen3-demo kv-demo migration-demo compat lint sanitize
.PHONY: clean distclean

help:       ## show this list
	@grep -E '^[a-z-]+: .*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 17

setup:      ## system packages, .venv and requirements, where missing
	@scripts/setup.sh

build: setup ## build everything in build/, tests too, and put the libraries into the package
	@scripts/build.sh

product:    ## build the libraries and no tests
	@scripts/setup.sh product
	@scripts/build.sh product

demo: product ## the main job: semantic search with a real model (ARGS="--help" for its options)
	@$(PYTHON_BIN) -m torch_hetero.demo $(ARGS)

check: setup ## build what changed and run the quick checks
	@$(PYTHON_BIN) scripts/test.py --quick $(ARGS)

test: setup ## build, and all tests, C++ and Python (ARGS go to pytest)
	@$(PYTHON_BIN) scripts/test.py $(ARGS)

test-full: setup ## the long version of every test: all sets of parameters on every machine, 100,000 seeds
	@$(PYTHON_BIN) scripts/test.py --full $(ARGS)

test-gpu:   ## build with CUDA against the torch that is there, the CUDA path's tests and figures, one report: build/gpu.md
	@$(if $(wildcard $(PYTHON_BIN)),$(PYTHON_BIN),$${PYTHON:-python3}) scripts/test.py --gpu $(ARGS)

sim-fuzz: build ## 100,000 random programs on simulated accelerators, some 20 minutes (ARGS="--seed 7", "--first 100000 --seeds 5000")
	@build/tests/graph/hetero_sim_fuzz $(ARGS)

fuzz: build ## random programs in Python under eight configurations, 1,000 each in some 15 minutes (ARGS="--programs 10000", "--only sync --first 7", "networks --count 300")
	@.venv/bin/python -m tests.fuzz $(ARGS)

calls: product ## how long each call of op_db takes against eager, some minutes (ARGS="--first" for the first calls of a process)
	@$(PYTHON_BIN) -m tests.upstream.calls $(ARGS)

load-fuzz: build ## 100,000 damaged files of saved programs, some minutes (ARGS="--seed 7", "--first 100000 --seeds 5000")
	@build/tests/graph/hetero_load_fuzz $(ARGS)

bench: build ## timings as ratios to eager and other peers, measured in the same run (ARGS="chain norms --peers")
	@$(PYTHON_BIN) -m tests.perf $(ARGS)

qwen3-demo: setup product ## Qwen3 in C++: generates, with random weights where no folder is given (MODEL=FOLDER ARGS="chat --help")
	@scripts/qwen3_demo.sh $(ARGS)

kv-demo: setup product ## a long shared prompt: computed, from host memory, and from the disk after a restart (ARGS="--tokens 512 --layers 8")
	@$(PYTHON_BIN) -m torch_hetero.kv demo $(ARGS)

migration-demo: setup product ## trains on a folder of photographs with and without a plan that moves its preprocessing (ARGS="photos --photos 256", "sounds")
	@$(PYTHON_BIN) examples/migration/compare.py $(ARGS)

serve-demo: product ## requests for a real model on one and on several core groups, against eager and inductor (ARGS="--help" for its options)
	@$(PYTHON_BIN) -m tests.perf.serve_demo $(ARGS)

bench-partition: ## planning for two devices in virtual time, with bars; no torch (ARGS="streaming peers" for some sections)
	@scripts/bench_partition.sh $(ARGS)

test-libraries: product ## programs of the libraries above PyTorch, in .venv-libraries (ARGS go to pytest)
	@scripts/test_libraries.sh $(ARGS)

compat: setup ## build against the newest stable torch in .venv-compat, and a smoke test (ARGS="2.14.1 --suite" for another torch, and the suites)
	@scripts/compat.sh $(ARGS)

lint: setup ## include direction, and ruff and clang-format where present
	@scripts/lint.sh

sanitize:   ## torch-free tests under ASan, UBSan and TSan
	@scripts/sanitize.sh

clean:      ## remove what the build made
	rm -rf build torch_hetero/_C*.so torch_hetero/lib torch_hetero/include torch_hetero/share torch_hetero.egg-info

distclean: clean ## remove the environments too
	rm -rf .venv .venv-compat .venv-libraries
