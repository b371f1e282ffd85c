# demo   one command: a schedule for the paper's problem, checked; then ResNet-18 captured, planned and
#        trained on real digits within 40 % of the RAM that PyTorch takes
# demo-resnet18-m4   ResNet-18 trained on an emulated Cortex-M4 with 256 KB of RAM
# demo-bert-m4       BERT-base, all of its 109 million parameters, on the same; goes on where it stopped
# serve  the service and its page, until Ctrl-C; SERVE="--port 8080" adds options
# test   everything: format, lint, types, import contracts, tests
# quick  the unit tests that are not slow, for while you work: no torch, emulator or browser
# check  format, lint, types, import contracts
# bench  the benchmarks, each a table of ratios
# setup  the virtual environment with all tools, for work on POET
# wheel  the wheel, with the searches compiled inside, and the sdist, into dist/
# clean  removes .venv, build/ and dist/
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# What the demo asks for; less is enough to see that it works.
DEMO_PLAN ?= --time-limit 20
DEMO_MODEL ?= resnet18-cifar?batch=16
DEMO_PROFILE ?= --seconds 4
DEMO_TRAIN ?= --steps 20 --time-limit 10

.PHONY: serve demo demo-resnet18-m4 demo-bert-m4 test quick check bench setup wheel clean compiler browser emulator linters proxy
.DEFAULT_GOAL := demo

demo: .venv/poet.stamp compiler
	@mkdir -p build
	$(BIN)/poet plan instances/resnet18_cifar-m4.json --ram 500KB --deadline 1.5x $(DEMO_PLAN) -o build/demo.json --force
	$(BIN)/poet check build/demo.json
	$(BIN)/poet profile "$(DEMO_MODEL)" --optimizer "adam?lr=0.001" --store build/pages $(DEMO_PROFILE) -o build/profile.json --force > build/profile.txt
	$(BIN)/poet train "$(DEMO_MODEL)" --ram 64MB --store build/pages --costs build/profile.json $(DEMO_TRAIN)
	$(BIN)/poet report build/demo.json -o build/report.html --force

serve: .venv/serve.stamp compiler
	$(BIN)/poet serve --open $(SERVE)

demo-resnet18-m4: setup
	$(BIN)/python -m benchmarks firmware-resnet18

demo-bert-m4: setup
	$(BIN)/python -m benchmarks firmware-bert-base

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: .venv/dev.stamp compiler
	$(BIN)/python -m pytest tests/unit -m "not slow" -n 2 --dist worksteal

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

wheel: .venv/bin/hatchling compiler
	$(BIN)/hatchling build -t wheel -t sdist -d dist

bench: setup
	$(BIN)/python -m benchmarks

setup: .venv/dev.stamp compiler browser emulator linters proxy

.venv/dev.stamp: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing POET and the tools to work on it into .venv ..."
	@$(INSTALL) -e .[dev,integrations,ray,report,serve,transformers]
	@touch .venv/poet.stamp .venv/serve.stamp $@

.venv/poet.stamp: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing POET into .venv ..."
	@$(INSTALL) -e .[report,torch]
	@touch $@

.venv/serve.stamp: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing POET and its service into .venv ..."
	@$(INSTALL) -e .[report,serve,torch,transformers]
	@touch $@

.venv/bin/hatchling: .venv/bin/python
	@$(INSTALL) hatchling

compiler:
	@command -v cc >/dev/null || command -v gcc >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update && apt-get install -y gcc libc6-dev; } \
	  || echo "no C compiler found: POET will plan without its fast search"

browser:
	@command -v chromium >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || echo "no chromium found: tests of the report page will be skipped"

emulator:
	@{ command -v arm-none-eabi-gcc && command -v qemu-system-arm && command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64; } >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc-arm-none-eabi qemu-system-arm \
	       gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null; } \
	  || echo "no cross compilers or emulators found: tests of firmware on boards and of aarch64 will be skipped"

linters:
	@{ command -v clang && command -v cppcheck; } >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends clang cppcheck >/dev/null; } \
	  || echo "no clang or cppcheck found: tests that firmware gives no warnings will be skipped"

# Where systemd runs, installing nginx would start it.
proxy:
	@{ command -v openssl && command -v systemd-analyze && PATH="$$PATH:/usr/sbin" command -v nginx; } >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && [ ! -d /run/systemd/system ] && apt-get update -qq \
	       && apt-get install -y -qq --no-install-recommends nginx-light openssl systemd >/dev/null; } \
	  || echo "no nginx, openssl or systemd-analyze found: tests of a service behind a proxy will be skipped"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "POET needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { apt-get update && apt-get install -y python3-venv; } \
	  || { echo "install python3-venv, then try again"; exit 1; }
	@$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist
