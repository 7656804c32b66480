# Lockstep's front door: every target is one verb. `make` alone prints them.
# Settings are variables: make image IMAGE=vllm ARCH=aarch64

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export TZ := UTC
export LC_ALL := C.UTF-8

IMAGE ?= vllm
ARCH := $(or $(ARCH),$(shell uname -m))
BASE ?= bootstrap
export IMAGE ARCH BASE

VENV := .venv
LOCKSTEP := $(VENV)/bin/lockstep
# What is kept of IMAGE: only some of its backends, or without wheels that are compiled from source.
PART = $(if $(BACKENDS),--backends "$(BACKENDS)") $(if $(WITHOUT),--without "$(WITHOUT)")

.PHONY: help
help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

# The host program: pinned by hash, in a virtual environment that belongs to this checkout.
$(VENV)/ready: requirements.txt pyproject.toml
	@scripts/bootstrap.sh $(VENV)

.PHONY: setup
setup: $(VENV)/ready ## make the virtual environment of the host program

.PHONY: lock plan render check schema requirements
lock: setup ## resolve every backend on every architecture (BACKEND=, UPGRADE=pkg|all)
	@$(LOCKSTEP) lock $(if $(BACKEND),--backend $(BACKEND)) $(if $(UPGRADE),--upgrade $(UPGRADE))
plan: setup ## print the layer plan of IMAGE (BACKENDS="a b": only those; WITHOUT="c d": leave out compiled packages)
	@$(LOCKSTEP) plan $(IMAGE) --arch $(ARCH) $(PART)
render: setup ## write the Dockerfiles, bake.hcl and the JSON schema
	@$(LOCKSTEP) render
check: setup ## fail where the generated files differ from what `make render` writes
	@$(LOCKSTEP) render --check
requirements: setup ## pin the host program's own requirements again
	@$(VENV)/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header -q -o requirements.txt

.PHONY: lock-diff
lock-diff: setup ## say what the locks move against BASE=<git ref>; fail where a package went backwards undeclared
	@$(LOCKSTEP) lock-diff "$(if $(filter command line,$(origin BASE)),$(BASE),HEAD)"

.PHONY: image probe
image: setup ## build IMAGE for ARCH on BASE, name it, print digest, size and times (BACKENDS="a b": only those; WITHOUT="c d": leave out compiled packages; WHEELS=1: compile too)
	@$(LOCKSTEP) image $(IMAGE) --arch $(ARCH) --base $(BASE) $(PART) $(if $(WHEELS),--wheels) \
	  $(if $(COMPRESSION),--compression $(COMPRESSION)) $(if $(CACHE_TO),--cache-to "$(CACHE_TO)") $(if $(CACHE_FROM),--cache-from "$(CACHE_FROM)")
probe: setup ## run the image: interpreter, versions against the lock, imports as root and as a user (BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) probe $(IMAGE) --arch $(ARCH) $(PART)

.PHONY: engine engine-stop engine-status engine-clean base lock-base
engine: setup ## find the Docker to build with, or make and start the private engine
	@$(LOCKSTEP) engine
engine-stop: setup ## stop the private engine; images and caches stay
	@$(LOCKSTEP) engine-stop
engine-status: setup ## print which engine a build would use, and whether it answers
	@$(LOCKSTEP) engine-status
engine-clean: setup ## remove the private engine with all its images and caches
	@$(LOCKSTEP) engine-clean
lock-base: setup ## lock the Debian packages of the base as the archive is now
	@$(LOCKSTEP) lock-base
base: setup ## make the base's root file systems for ARCH
	@$(LOCKSTEP) base --arch $(ARCH)

.PHONY: audit arch-report diff explain
audit: setup ## look for faults inside IMAGE for ARCH (BACKENDS=, WITHOUT=), or inside AT=<venv, root, layout, tar or lock>; runs nothing of it
	@$(LOCKSTEP) audit $(if $(AT),$(AT),--image $(IMAGE) --arch $(ARCH)) $(PART)
arch-report: setup ## say what differs between the architectures of IMAGE (default: every image); fail where versions.yaml does not declare it (BACKENDS=, WITHOUT=, SCRIPTS=1: read the wheels too, JSON=1)
	@$(LOCKSTEP) arch-report $(if $(filter command line,$(origin IMAGE)),$(IMAGE)) $(PART) $(if $(SCRIPTS),--scripts) $(if $(JSON),--json)
diff: setup ## say what changed from image A=… to image B=… (built images, layouts, tars or references; B may be A's BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) diff $(A) $(B) --arch $(ARCH) $(PART)
explain: setup ## say who holds package PKG=… where it is in BACKEND=… (WITHOUT=)
	@$(LOCKSTEP) explain $(PKG) --backend $(BACKEND) --arch $(ARCH) $(if $(WITHOUT),--without "$(WITHOUT)")

.PHONY: bump why repro
bump: setup ## move BACKEND=vllm (or PACKAGE=) TO=0.30.0, relock, and report what breaks (DRY_RUN=1 changes nothing, ABI_MB=)
	@$(LOCKSTEP) bump --to "$(TO)" $(if $(BACKEND),--backend $(BACKEND)) $(if $(PACKAGE),--package $(PACKAGE)) $(if $(DRY_RUN),--dry-run) $(if $(ABI_MB),--abi-mb $(ABI_MB))
why: setup ## say why LAYER=… of IMAGE would be built again, or that it would not (BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) why "$(LAYER)" --image $(IMAGE) --arch $(ARCH) $(PART)
repro: setup ## build IMAGE from nothing twice with all varied that may vary, and compare (TIMES=2, BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) repro $(IMAGE) --arch $(ARCH) $(PART) $(if $(TIMES),--times $(TIMES))

.PHONY: check-source
check-source: setup ## say what PACKAGE=vllm breaks in the tree DIR=… at TO=… (FROM=… tells what is new)
	@$(LOCKSTEP) check-source $(DIR) --package $(or $(PACKAGE),vllm) --to $(TO) $(if $(FROM),--from $(FROM))

.PHONY: wheels wheels-status lock-wheels mirror mirror-push mirror-pull
wheels: setup ## build the wheels that are compiled from source (PACKAGE=, LINE=, COLD=1 builds again and compares, MEMORY_GB=)
	@$(LOCKSTEP) wheels --arch $(ARCH) $(if $(PACKAGE),--package $(PACKAGE)) $(if $(LINE),--line $(LINE)) $(if $(COLD),--cold) $(if $(MEMORY_GB),--memory-gb $(MEMORY_GB))
wheels-status: setup ## print which compiled wheels the store has, and whether two builds of each were equal
	@$(LOCKSTEP) wheels --status --arch $(ARCH)
lock-wheels: setup ## lock the build environments of the compiled wheels (PACKAGE=, LINE=, UPGRADE=pkg|all)
	@$(LOCKSTEP) lock-wheels $(if $(PACKAGE),--package $(PACKAGE)) $(if $(LINE),--line $(LINE)) $(if $(UPGRADE),--upgrade $(UPGRADE))
mirror: setup ## fetch, check and keep the wheels that no build may depend on fetching (PACKAGE=)
	@$(LOCKSTEP) mirror $(if $(PACKAGE),--package $(PACKAGE)) $(if $(filter command line,$(origin ARCH)),--arch $(ARCH))
mirror-push: setup ## push the mirrored wheels to a registry (TO=REGISTRY/NAME)
	@$(LOCKSTEP) mirror-push $(TO)
mirror-pull: setup ## pull mirrored wheels from a registry (FROM=REGISTRY/NAME)
	@$(LOCKSTEP) mirror-pull $(FROM)

.PHONY: push merge sqsh flatten layer-report slurm sbom verify cache-prune
push: setup ## push what was built of IMAGE to $$REGISTRY/IMAGE or REF=, every architecture or ARCH=, then move TAG= (BACKENDS=, WITHOUT=, SIGN_KEY=)
	@$(LOCKSTEP) push $(IMAGE) $(PART) $(if $(TAG),--tag $(TAG)) $(if $(REF),--ref $(REF)) $(if $(filter command line,$(origin ARCH)),--arch $(ARCH)) $(if $(SIGN_KEY),--sign-key $(SIGN_KEY))
merge: setup ## make one index of DIGESTS="sha256:… sha256:…" that are in the registry, and move REF=HOST/PATH:TAG to it
	@$(LOCKSTEP) merge $(REF) $(DIGESTS)
sqsh: setup ## make the .sqsh of IMAGE for ARCH (BACKENDS=, WITHOUT=, FROM=reference|layout|tarball|docker-daemon:NAME, OUT=, REF=, COMP=, LEVEL=, PROCESSORS=)
	@$(LOCKSTEP) sqsh $(IMAGE) --arch $(ARCH) $(PART) $(if $(FROM),--from $(FROM)) $(if $(OUT),--out $(OUT)) $(if $(REF),--ref $(REF)) $(if $(COMP),--comp $(COMP)) $(if $(LEVEL),--level $(LEVEL)) $(if $(PROCESSORS),--processors $(PROCESSORS))
flatten: setup ## write the merged tree of IMAGE for ARCH as one tar (FROM=, OUT=, BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) flatten $(IMAGE) --arch $(ARCH) $(PART) $(if $(FROM),--from $(FROM)) $(if $(OUT),--out $(OUT))
layer-report: setup ## list links across layers, folders turned into links and whiteouts of IMAGE for ARCH (FROM=, BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) layer-report $(IMAGE) --arch $(ARCH) $(PART) $(if $(FROM),--from $(FROM))
sbom: setup ## write the CycloneDX SBOM of IMAGE for ARCH (OUT=, BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) sbom $(IMAGE) --arch $(ARCH) $(PART) $(if $(OUT),--out $(OUT))
verify: setup ## check REF=: digests, signature (KEY=public.pem), SBOM against the layers, and with REBUILD=1 that it builds the same
	@$(LOCKSTEP) verify $(REF) $(if $(KEY),--key $(KEY)) $(if $(filter command line,$(origin ARCH)),--arch $(ARCH)) $(if $(REBUILD),--rebuild)
cache-prune: setup ## remove caches whose blobs are gone from a registry, and what is left over in a local cache (CACHE="HOST/PATH HOST/PATH:TAG folder", DRY_RUN=1)
	@$(LOCKSTEP) cache-prune $(CACHE) $(if $(DRY_RUN),--dry-run)
slurm: setup ## print the enroot, srun and sbatch lines of IMAGE (BACKENDS=, WITHOUT=, REF=, TAG=), and write a job that probes it on each node
	@$(LOCKSTEP) slurm $(IMAGE) $(PART) $(if $(REF),--ref $(REF)) $(if $(TAG),--tag $(TAG))

.PHONY: patches add-ons runtime-wheel
patches: setup ## print every patch and how it stands on the locked version (VERSION=, PACKAGE= forecast another)
	@$(LOCKSTEP) patches $(if $(VERSION),--version $(VERSION)) $(if $(PACKAGE),--package $(PACKAGE))
add-ons: setup ## lock the codec and audio packages that /opt/lockstep/add-ons of an image installs
	@$(LOCKSTEP) add-ons
runtime-wheel: setup ## build the wheel of docker/runtime into build/wheels
	@$(VENV)/bin/python -m lockstep.runtime_wheel

.PHONY: test lint unit build-tests network-tests acceptance bench
test: lint unit build-tests ## lint, unit tests, and build tests on small images with the real engine
lint: setup ## ruff, mypy, hadolint, shellcheck, and whether the generated files are current
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check --quiet .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/hadolint images/*/Dockerfile
	@$(VENV)/bin/shellcheck $$(git ls-files | xargs grep -lE '^#!(/bin/sh|/bin/bash|/usr/bin/env bash)' --)
	@$(LOCKSTEP) render --check
unit: setup ## unit tests: no network, seconds
	@$(VENV)/bin/python -m pytest -n auto tests/unit
build-tests: setup engine ## build small images with the real engine, and probe them
	@$(VENV)/bin/python -m pytest -x tests/build
network-tests: setup ## checks on real published wheels, read by range requests
	@$(VENV)/bin/python -m pytest tests/network
acceptance: test network-tests ## everything, and the real IMAGE (default vllm) built, probed and audited: needs 60 GB and an hour
	@$(MAKE) image IMAGE=$(IMAGE)
	@$(MAKE) probe IMAGE=$(IMAGE)
	@$(MAKE) audit IMAGE=$(IMAGE)
bench: setup ## measure IMAGE beside its peers (uv, zstd) and write docs/bench.md (BACKENDS=, WITHOUT=)
	@$(LOCKSTEP) bench $(IMAGE) --arch $(ARCH) $(PART)
