# Each target works as the first command after a clone: python3 (3.11 or newer), make and git are
# enough. `make help` lists them.

PYTHON ?= python3
FORMAT ?= azure
TRACE ?= $(wildcard ../shared/traces/azure_conv_2023.csv)
AZURE ?= $(TRACE)
MOONCAKE ?= $(wildcard ../shared/traces/mooncake_conversation.jsonl)

BIN := .venv/bin
STAMP := .venv/.setup-done
TPU_STAMP := .venv/.tpu-done
KERNEL_PEERS := .venv-kernel-peers
REFERENCE_PEERS := .venv-reference-peers
CHIPS := v4,v5e,v5p,v6e,7x
ENGINE_PYTHON ?= $(firstword $(shell for one in python3.12 python3.13 python3.14 $(PYTHON) \
  $(HOME)/.pyenv/versions/3.1[2-9].*/bin/python; do $$one -c $(NEWER_312) 2>&- && echo $$one; done))
NEWER_312 = 'import sys; sys.exit(sys.version_info < (3, 12))'
ENGINE_SECONDS ?= 40
VLLM ?= 0.25.0
SCHEDULERS := make make_async make_pipelined make_hybrid make_hybrid_async make_drafts \
  make_drafts_async make_drafts_hybrid make_drafts_hybrid_async
LEVANTER_SECONDS ?= 150
# mini-sglang is not on the package index: a commit of its repository is installed.
MINI_SGLANG ?= git+https://github.com/sgl-project/mini-sglang@20fcd7f3c6a1898a61139fae1c97cc7a40bd8d66
# nano-vllm neither.
NANO_VLLM ?= git+https://github.com/GeeeekExplorer/nano-vllm@bb823b3e06983d71485a8e1f23715ebd87d98ef8
# Rows of lmdeploy are arrays that grow after 128 pages.
LONG_ROWS := pages=400,slots=2,page_size=1,pages_per_seq=300
CHECK_ENGINE_PYTHON = test -n "$(ENGINE_PYTHON)" && $(ENGINE_PYTHON) -c $(NEWER_312) || \
  { echo "make: no Python 3.12 or newer was found; name one:" \
    "make ENGINE_PYTHON=/path/to/python3.12" >&2; exit 2; }
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "make: $(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.11" >&2; \
    exit 2; }

# The tests start hundreds of processes. Without bytecode each would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test deep fuzz replay refine plant mutants guards histories hostile kernel grid compare bench peers cross-check \
  ahead preempt preempt-azure preempt-mooncake \
  preempted-azure-first preempted-azure-rest preempted-mooncake-first preempted-mooncake-rest \
  recording actions docs type lint lock clean trace engine-levanter engine-levanter-2025 finding-levanter \
  finding-levanter-2025 \
  engine-sglang-jax engine-vllm engine-vllm-release engine-lmdeploy engine-transformers engine-mini-sglang \
  engine-nano-vllm

plant kernel grid compare peers recording engine-levanter engine-levanter-2025 \
  engine-sglang-jax engine-vllm engine-lmdeploy engine-transformers engine-mini-sglang: \
  | .kvspec

.kvspec:
	@mkdir -p $@

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 28

setup: $(STAMP) ## make .venv from requirements.lock; again when it or pyproject.toml changes

test: $(STAMP) ## run all but the deep tests, with the TPU compiler where that can be installed
	@$(MAKE) --no-print-directory $(TPU_STAMP) || \
	  echo "make: the TPU compiler cannot be installed here: tests that need it say NOT CHECKED" >&2
	$(BIN)/python -m pytest tests -n auto --maxprocesses 8 --dist loadfile \
	  --no-loadscope-reorder

deep: $(STAMP) ## run the tests that `make test` leaves out, since they take long
	XLA_FLAGS= $(BIN)/python -m pytest tests -m deep -n auto --maxprocesses 8

fuzz: $(STAMP) ## fuzz the engine against the specification for 60 seconds
	$(BIN)/kvspec fuzz --seconds 60

replay: trace $(STAMP) ## run a trace through engine and specification: TRACE=file FORMAT=azure
	$(BIN)/kvspec replay "$(TRACE)" --format "$(FORMAT)"

preempt: preempt-azure preempt-mooncake ## serve both traces in pools so small that requests are preempted: AZURE=file MOONCAKE=file LAG=steps in flight

ahead: $(STAMP) ## serve both traces with a host that does not wait, at each lag: AZURE=file MOONCAKE=file
	$(BIN)/python -m conformance.benchmarks.ahead_traffic "$(AZURE)"
	$(BIN)/python -m conformance.benchmarks.ahead_traffic "$(MOONCAKE)" --format mooncake --new-tokens-divided-by 64

# Each trace in two halves at once, each of which begins with an empty pool.
preempt-azure preempt-mooncake: preempt-%: $(STAMP) | .kvspec
	@$(MAKE) --no-print-directory -j2 --output-sync=target preempted-$*-first preempted-$*-rest

preempted-azure-first: WORDS = "$(AZURE)" --format azure --pages 64 --limit 9683
preempted-azure-rest: WORDS = "$(AZURE)" --format azure --pages 64 --skip 9683
preempted-mooncake-first: WORDS = "$(MOONCAKE)" --format mooncake --pages 280 --new-tokens-divided-by 64 --limit 6016
preempted-mooncake-rest: WORDS = "$(MOONCAKE)" --format mooncake --pages 280 --new-tokens-divided-by 64 --skip 6016
preempted-azure-first preempted-azure-rest preempted-mooncake-first preempted-mooncake-rest:
	$(BIN)/kvspec replay $(WORDS) --preempt$(LAG:%= --lag %) --json .kvspec/$@$(LAG:%=-lag-%).json

refine: $(STAMP) ## check the engine on every transition of several small geometries, and print a table
	$(BIN)/python -m conformance.refinement.scopes

plant: $(STAMP) ## score the kit on every planted bug; can be resumed
	$(BIN)/kvspec plant --json .kvspec/plant.json --write docs/score.md

mutants: $(TPU_STAMP) ## mutate the engine, and say which method kills which mutant: docs/mutants; can be resumed
	$(BIN)/python -m conformance.mutation.run --write docs/mutants

guards: $(STAMP) ## leave out each guard of the engine in turn, and check that refinement notices
	$(BIN)/python -m conformance.mutation.guards

histories: $(STAMP) ## judge legal histories with one change: docs/changed-histories.md
	$(BIN)/python -m conformance.mutation.histories --write docs/changed-histories.md

hostile: $(STAMP) ## hostile inputs, and interrupts at random moments; can be resumed
	$(BIN)/python -m conformance.hostile.run

kernel: $(STAMP) ## check the reference, our TPU kernel (interpreted), and bugs planted in the kernel
	$(BIN)/kvspec kernel reference --json .kvspec/kernel-reference.json
	$(BIN)/kvspec kernel tpu --json .kvspec/kernel.json
	$(BIN)/kvspec kernel tpu --mutants --json .kvspec/kernel-mutants.json

grid: $(TPU_STAMP) ## compile our kernel and that of jax for each TPU; can be resumed
	$(BIN)/kvspec kernel tpu --target $(CHIPS) --json .kvspec/grid.json
	$(BIN)/kvspec kernel jax --target $(CHIPS) --json .kvspec/grid-jax.json || test $$? -eq 1

compare: $(KERNEL_PEERS)/.done ## compare the kernels of jax and tpu-inference with ours: docs/compare.md; can be resumed
	$(KERNEL_PEERS)/bin/kvspec compare --json .kvspec/compare.json --write docs/compare.md

recording: $(STAMP) ## judge recordings of 1,000,000 events, unchanged and with one value altered
	$(BIN)/python -m conformance.benchmarks.soak --json .kvspec/long.json

bench: $(STAMP) ## measure; every number that the documents quote comes from this target
	$(BIN)/python -m conformance.benchmarks.run
	$(BIN)/python -m conformance.benchmarks.ahead
	$(if $(TRACE),$(BIN)/python -m conformance.benchmarks.batching $(TRACE))

peers: $(REFERENCE_PEERS)/.done ## measure the reference attention beside those of jax and Levanter, in one run
	$(REFERENCE_PEERS)/bin/python -m conformance.benchmarks.peers.run --json .kvspec/peers.json

cross-check: $(STAMP) ## count the states of the allocator with SPIN and compare; needs spin and cc
	$(BIN)/python -m conformance.exploration.cross_check

engine-levanter: .venv-levanter/.done ## rerun every finding in the current Levanter, then fuzz the rest
	$(call check_levanter,levanter)

engine-levanter-2025: .venv-levanter-2025/.done ## the same for the Levanter of autumn 2025
	$(call check_levanter,levanter-2025)

finding-levanter: .venv-levanter/.done ## reproduce one finding of docs/findings with Levanter alone: NAME=clones
	.venv-levanter/bin/python docs/findings/levanter_alone.py $(NAME)

finding-levanter-2025: .venv-levanter-2025/.done ## the same with the Levanter of autumn 2025
	.venv-levanter-2025/bin/python docs/findings/levanter_alone.py $(NAME)

engine-sglang-jax: .venv-sglang-jax/.done ## rerun the known findings in sglang-jax, then fuzz the rest
	.venv-sglang-jax/bin/python docs/findings/sglang_alone.py
	$(call check_engine,sglang-jax,sglang_jax,make)
	$(call check_engine,sglang-jax,sglang_jax,make_caching)
	$(call still_fails,sglang-jax,sglang_jax,make_caching_in_parts)

# Met or not, in the words of docs/findings/vllm-uncomputed-prefix.md: any other finding is one.
KNOWN_OF_PRIORITY := "all are served: PC: .* holds"
engine-vllm: PLANS = .venv-vllm/bin/python -m conformance.harnesses.plans \
  --seconds $(ENGINE_SECONDS) conformance.harnesses.vllm_scheduler
engine-vllm: export VLLM_LOGGING_LEVEL = ERROR
engine-vllm: .venv-vllm/.done ## rerun the known finding in the core of vLLM v1, then fuzz its cache manager and its scheduler
	.venv-vllm/bin/python docs/findings/vllm_alone.py
	$(call check_engine,vllm,vllm,make)
	$(call check_engine,vllm,vllm,make_caching_written)
	$(call still_fails,vllm,vllm,make_caching)
	for made in $(SCHEDULERS); do $(PLANS):$$made || exit $$?; done
	for made in make_priority make_priority_async; do \
	  $(PLANS):$$made > .kvspec/$$made.txt; ended=$$?; cat .kvspec/$$made.txt; \
	  grep -q $(KNOWN_OF_PRIORITY) .kvspec/$$made.txt || test $$ended -eq 0 || exit $$ended; done

engine-vllm-release: export VLLM_LOGGING_LEVEL = ERROR
engine-vllm-release: export KVSPEC_ANY_VLLM = 1
engine-vllm-release: .venv-vllm/.done ## drive the scheduler of an older release of vLLM, such as VLLM=0.23.0; WITHOUT=forget or abort leaves out what leads to a known finding
	test -d .venv-vllm/$(VLLM) || VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$(VLLM) \
	  .venv-vllm/bin/python -m pip install --quiet --no-deps --no-build-isolation --no-binary vllm-tpu \
	  --target .venv-vllm/$(VLLM) vllm-tpu==$(VLLM) gguf==0.19.0 einops==0.8.2
	ended=0; for made in $(SCHEDULERS) make_priority make_priority_async; do PYTHONPATH=.venv-vllm/$(VLLM) \
	  .venv-vllm/bin/python -m conformance.harnesses.plans --seconds $(ENGINE_SECONDS) --seed 1 \
	  $(addprefix --without ,$(WITHOUT)) conformance.harnesses.vllm_scheduler:$$made || ended=$$?; done; exit $$ended

engine-nano-vllm: .venv-nano-vllm/.done ## drive the scheduler of nano-vllm
	.venv-nano-vllm/bin/python -m conformance.harnesses.plans --seconds $(ENGINE_SECONDS) \
	  conformance.harnesses.nano_vllm_scheduler:make

engine-lmdeploy: .venv-lmdeploy/.done ## rerun the known findings in lmdeploy, then fuzz the rest
	.venv-lmdeploy/bin/python docs/findings/lmdeploy_alone.py
	$(call check_engine,lmdeploy,lmdeploy,make)
	$(call check_engine,lmdeploy,lmdeploy,make_caching_written)
	$(call still_fails,lmdeploy,lmdeploy,make_caching)
	.venv-lmdeploy/bin/kvspec fuzz --engine conformance.engines.lmdeploy:make --seconds $(ENGINE_SECONDS) \
	  --geometry $(LONG_ROWS) --corpus .kvspec/lmdeploy-long --json .kvspec/lmdeploy-long.json

engine-transformers: export CUDA_VISIBLE_DEVICES =
engine-transformers: .venv-transformers/.done ## rerun the finding in transformers, then fuzz its paged cache
	.venv-transformers/bin/python docs/findings/transformers_alone.py
	$(call check_engine,transformers,transformers_cache,make)
	$(call check_engine,transformers,transformers_cache,make_sharing)

engine-mini-sglang: export CUDA_VISIBLE_DEVICES =
engine-mini-sglang: export PATH := $(CURDIR)/.venv-mini-sglang/bin:$(PATH)
engine-mini-sglang: .venv-mini-sglang/.done ## rerun the known finding in mini-sglang, then fuzz the rest
	.venv-mini-sglang/bin/python docs/findings/mini_sglang_alone.py
	$(call check_engine,mini-sglang,mini_sglang,make_ended)
	$(call still_fails,mini-sglang,mini_sglang,make)

actions: $(STAMP) ## write docs/actions.md, the reference of the actions, from the specification
	$(BIN)/python -m conformance.recordings.actions_page docs/actions.md

docs: $(STAMP) .venv-sglang-jax/.done .venv-transformers/.done .venv-vllm/.done .venv-lmdeploy/.done .venv-mini-sglang/.done ## run the commands of the documents that `make test` leaves out
	$(BIN)/python -m pytest tests/docs/docs_slow.py

type: $(STAMP) ## mypy --strict
	$(BIN)/python -m mypy

lint: $(STAMP) ## ruff, rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lock: ## remake requirements.lock: the newest versions that pyproject.toml allows
	@$(CHECK_PYTHON)
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade ".[dev]"
	{ sed -n '/^#/p' requirements.lock; \
	  build/lock/bin/python -m pip freeze --all | grep -E '^[A-Za-z0-9._-]+==' \
	    | grep -vE '^(pip|wheel)=='; } > build/requirements.lock
	mv build/requirements.lock requirements.lock
	build/lock/bin/python -m pip install --quiet ".[tpu]"
	{ sed -n '/^#/p' requirements-tpu.lock; \
	  build/lock/bin/python -m pip freeze --all | grep '^libtpu=='; } > build/requirements-tpu.lock
	mv build/requirements-tpu.lock requirements-tpu.lock
	rm -rf build/lock

clean: ## remove .venv, caches and build outputs
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# An engine that we test has its own environment, on which nothing else depends.
.venv-%/.done: conformance/engines/%.lock pyproject.toml
	@$(CHECK_ENGINE_PYTHON)
	$(ENGINE_PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --no-deps --requirement $<
	.venv-$*/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# $(1): the environment.
# Known findings are expected: their scripts and histories must still fail. Then the adapters avoid
# them, and the exit status is that of the kit: 0 if it finds nothing else.
define check_levanter
.venv-$(1)/bin/python docs/findings/levanter_alone.py
@for history in docs/findings/levanter-*.jsonl; do \
  .venv-$(1)/bin/kvspec rerun --trust --quiet $$history; test $$? -eq 1 || \
  { echo "make: $$history does not fail any more; its page is out of date" >&2; exit 1; }; done
.venv-$(1)/bin/kvspec fuzz --engine conformance.engines.levanter:make --seconds $(LEVANTER_SECONDS) \
  --corpus .kvspec/$(1) --json .kvspec/$(1).json
for model in weighing llama; do .venv-$(1)/bin/python -m conformance.harnesses.requests \
  conformance.harnesses.levanter_requests:$$model --seconds $(ENGINE_SECONDS) || exit $$?; done
endef

# vllm-tpu comes as source. With the target device "empty" nothing of it is compiled, but its version
# would then name the device of torch.
.venv-vllm/.done: conformance/engines/vllm.lock pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-vllm
	grep -v '^vllm-tpu==' $< > .venv-vllm/first.lock
	.venv-vllm/bin/python -m pip install --quiet --no-deps --requirement .venv-vllm/first.lock
	VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$$(sed -n 's/^vllm-tpu==//p' $<) \
	  .venv-vllm/bin/python -m pip install --quiet --no-deps --no-build-isolation --requirement $<
	.venv-vllm/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Where a build of torch for CPUs is, it is for the Python of the kit, as for vLLM.
.venv-lmdeploy/.done: conformance/engines/lmdeploy.lock pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-lmdeploy
	.venv-lmdeploy/bin/python -m pip install --quiet --no-deps --requirement $<
	.venv-lmdeploy/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-mini-sglang/.done: COMMIT = $(MINI_SGLANG)
.venv-nano-vllm/.done: COMMIT = $(NANO_VLLM)
.venv-mini-sglang/.done .venv-nano-vllm/.done: .venv-%/.done: conformance/engines/%.lock pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --no-deps --requirement $<
	.venv-$*/bin/python -m pip install --quiet --no-deps --no-build-isolation "$(COMMIT)"
	.venv-$*/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Unlike the others, transformers runs on every Python that kvspec itself does.
.venv-transformers/.done: conformance/engines/transformers.lock pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-transformers
	.venv-transformers/bin/python -m pip install --quiet --no-deps --requirement $<
	.venv-transformers/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# $(1): environment, $(2): module, $(3): factory. What this factory makes avoids known findings.
define check_engine
.venv-$(1)/bin/kvspec fuzz --engine conformance.engines.$(2):$(3) --seconds $(ENGINE_SECONDS) \
  --corpus .kvspec/$(1)-$(3) --json .kvspec/$(1)-$(3).json
endef

# What this factory makes shows a known finding.
define still_fails
.venv-$(1)/bin/kvspec fuzz --engine conformance.engines.$(2):$(3) --seconds $(ENGINE_SECONDS) \
  --corpus .kvspec/$(1)-$(3) --json .kvspec/$(1)-$(3).json; test $$? -eq 1 || \
  { echo "make: $(2):$(3) does not fail any more; the page of the finding is out of date" >&2; exit 1; }
endef

$(TPU_STAMP): $(STAMP) requirements-tpu.lock
	$(BIN)/python -m pip install --quiet --requirement requirements-tpu.lock
	@touch $@

$(KERNEL_PEERS)/.done: requirements.lock requirements-tpu.lock requirements-kernel-peers.lock pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(KERNEL_PEERS)
	$(KERNEL_PEERS)/bin/python -m pip install --quiet --requirement requirements.lock \
	  --requirement requirements-tpu.lock
	$(KERNEL_PEERS)/bin/python -m pip install --quiet --no-deps --requirement requirements-kernel-peers.lock
	$(KERNEL_PEERS)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Levanter depends on about fifty distributions that its attention does not need: hence --no-deps.
$(REFERENCE_PEERS)/.done: requirements.lock requirements-reference-peers.lock
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(REFERENCE_PEERS)
	$(REFERENCE_PEERS)/bin/python -m pip install --quiet --requirement requirements.lock
	$(REFERENCE_PEERS)/bin/python -m pip install --quiet --no-deps --requirement requirements-reference-peers.lock
	@mkdir -p .kvspec
	@touch $@

trace:
	@test -n "$(TRACE)" || \
	  { echo "make replay: no trace; name one: make replay TRACE=trace.csv FORMAT=azure" >&2; exit 2; }
	@test -r "$(TRACE)" || \
	  { echo "make replay: cannot read TRACE=$(TRACE); name a trace file that exists" >&2; exit 2; }
