# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
#
# Verbs of a checkout. `make` alone prints them. All paths are relative: the checkout may be anywhere, and its path may
# hold spaces.

SHELL = /bin/sh
.DEFAULT_GOAL := help

INVENTORY ?= inventories/2p1d
# More arguments for the verb's own command: make demo ARGS='-e pd_proxy_port=2000'
ARGS ?=

PYTHON_BIN := .venv/bin/python
PLAYBOOK := .venv/bin/ansible-playbook
REHEARSE := -i "$(INVENTORY)" -e pd_rehearsal=true
LAYERWISE := -e pd_connector=MooncakeLayerwiseConnector

# Also found when the checkout is world-writable, where Ansible would ignore the file.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
# Ansible refuses a locale that is not UTF-8 or not installed.
export LC_ALL := C.UTF-8
# Set in many container images; with it Python reads a module that comes by its standard input byte by byte, 0.1 s a task.
unexport PYTHONUNBUFFERED

.PHONY: help
help: ## Print this list
	@echo 'make VERB, where VERB is one of'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r verb text; do \
		printf '  %-17s %s\n' "$$verb" "$$text"; done

.PHONY: setup
setup: ## Make .venv with all that planning, deploying and rehearsing need
	@sh tools/setup.sh

.PHONY: setup-dev
setup-dev: ## The same, and what the tests and linters need
	@sh tools/setup.sh --dev

.PHONY: demo
demo: setup ## Rehearse the four-host 2P1D example on this machine
	$(PLAYBOOK) site.yml $(REHEARSE) $(ARGS)
	@$(call demo_hints,$(ARGS))

.PHONY: demo-layerwise
demo-layerwise: setup ## The same with the layerwise connector and its proxy
	$(PLAYBOOK) site.yml $(REHEARSE) $(LAYERWISE) $(ARGS)
	@$(call demo_hints,$(LAYERWISE) $(ARGS))

# The arguments of the run belong to the next ones too: without them status would miss another configuration.
define demo_hints
echo; \
echo 'The rehearsal goes on running. Next:'; \
echo '  look:  $(call quoted,$(strip $(PLAYBOOK) status.yml $(REHEARSE) $(1)))'; \
echo '  stop:  $(call quoted,make demo-stop$(DEMO_SETTINGS))'
endef

# For a word in single quotes.
quoted = $(subst ','\'',$(1))

# What a verb was told on the command line and its counterpart has to be told as well.
DEMO_SETTINGS = $(if $(filter-out file,$(origin INVENTORY)), INVENTORY="$(INVENTORY)")$(if $(ARGS), ARGS="$(ARGS)")

.PHONY: demo-stop
demo-stop: setup ## Stop the rehearsal
	$(PLAYBOOK) stop.yml $(REHEARSE) $(ARGS)

.PHONY: test
test: test-unit test-integration ## Run all tests

.PHONY: test-unit
test-unit: setup-dev ## Run the unit tests only
	$(PYTHON_BIN) -m pytest tests/unit -n 2 --junitxml=tests/output/unit.xml $(ARGS)

# With root in several processes, each with a network of its own; else one after the other, for the loopback ports.
.PHONY: test-integration
test-integration: setup-dev ## Run the integration tests only
	$(PYTHON_BIN) -m pytest tests/integration -n auto --dist loadgroup --junitxml=tests/output/integration.xml $(ARGS)

.PHONY: test-benchmark
test-benchmark: setup-dev ## Run the benchmark test, not part of .ci/run: installs AISBench with torch (4 min, up to 7 GB) into .venv/share
	$(PYTHON_BIN) -m pytest tests/benchmark --junitxml=tests/output/benchmark.xml $(ARGS)

# The lab's verbs need root and these Debian packages: podman runc mmdebstrap iproute2 openssh-client mount.
# exec: a signal to make reaches the command itself.
LABCTL := exec env PATH="$(CURDIR)/.venv/bin:$$PATH" molecule/lab/labctl
# A lab for the verb alone, so that it meets neither another verb nor the lab of `make lab`.
LAB_OF = export LAB_NAME="$${LAB_NAME:-$(1)}"; $(LABCTL) run --alone

.PHONY: lab-image
lab-image: setup ## Make the lab's root file system and engine images, where not up to date
	$(LABCTL) image

.PHONY: lab
lab: lab-image ## Boot hosts with sshd and Docker on this machine: make lab HOSTS='p1 d1' (docs/lab.md)
	$(LABCTL) up $(HOSTS)

.PHONY: lab-down
lab-down: ## Remove the hosts of `make lab`, or of the lab that LAB_NAME names
	$(LABCTL) down

.PHONY: test-lab
test-lab: setup-dev lab-image ## Run the Molecule scenarios in the lab
	$(call LAB_OF,molecule) molecule test --all --no-command-borders $(ARGS)

.PHONY: test-hosts
test-hosts: setup-dev lab-image ## Run the tests of faults, operators and access in the lab (not in .ci/run, for time)
	$(call LAB_OF,hosts) .venv/bin/python -m pytest tests/lab --junitxml=tests/output/lab.xml $(ARGS)

.PHONY: lint
lint: setup-dev ## Run all linters and type checks, and check what a release would hold
	.venv/bin/yamllint --strict .
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/antsibull-changelog lint
	$(PYTHON_BIN) tools/check_artifact.py
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/ansible-lint --offline

.PHONY: benchmark
benchmark: setup-dev ## Measure the planner, the playbooks and preflight
	PYTHONPATH=.ansible/collections $(PYTHON_BIN) -m benchmarks $(ARGS)

.PHONY: benchmark-lab
benchmark-lab: setup-dev lab-image ## Measure site.yml over SSH in the lab
	$(call LAB_OF,benchmark) .venv/bin/python -m benchmarks.lab $(ARGS)

.PHONY: build
build: setup ## Build the collection's artifact into build/
	.venv/bin/ansible-galaxy collection build --force --output-path build

.PHONY: clean
clean: ## Remove caches, reports and build results (a running rehearsal is not touched)
	rm -rf build tests/output .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./.venv -prune -o -path ./.git -prune -o -name __pycache__ -type d -exec rm -rf {} +
