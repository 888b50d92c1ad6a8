# `make demo` and `make test` do all the set-up on a fresh machine. PYTHON picks the interpreter (3.11 to 3.13).
# `make test` proves every capability once; `make test-all` adds every further case, and CI runs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Byte code makes the command start fast; a shell may have switched it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: course dist demo test test-all lint quick all docs system-packages speed clean

demo: $(VENV)/.demo
	@FAIRMILE=$(BIN)/fairmile PYTHON=$(BIN)/python bash demo/demo.sh

# The linters need one core for a minute or two, while most tests wait for something.
test: system-packages $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 lint quick

test-all: system-packages $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 lint all

quick: $(VENV)/.collected $(VENV)/.descendants
	$(call pytest,--quick)

all: $(VENV)/.collected $(VENV)/.descendants
	$(call pytest,)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Reading a test file for the first time takes long (pytest rewrites its assertions). One process does that for all workers.
TESTS := $(shell find tests -name 'test_*.py')
$(VENV)/.collected: $(TESTS) | $(VENV)/.dev
	@$(BIN)/pytest --collect-only -q -p no:cacheprovider $? > $@.log 2>&1 || { tail -30 $@.log; exit 1; }
	@touch $@

# Of the processor time of programs that tests start, most is spent on imports, and a fifth to a quarter of that (torch,
# scikit-learn, matplotlib) on searching new modules for garbage. What tests start, and nothing else, searches rarely.
$(VENV)/.descendants: tests/support/descendants.pth | $(VENV)/.dev
	@cp $< "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fairmile_descendants.pth"
	@touch $@

# Most tests wait for programs and services: three workers a core keep the cores busy. What fails is tried once more,
# alone, and both results are in the log.
WORKERS ?= $(shell echo $$((3 * $$(nproc))))
# pytest keeps the folders of three sessions, and would remove the others at the end, slowly and while nothing else runs.
OLD_SESSIONS = ls -dv $${TMPDIR:-/tmp}/pytest-of-$$(id -un)/pytest-[0-9]* | head -n -2 | \
  while read folder; do [ -e $$folder/.lock ] || nice rm -rf $$folder; done
define pytest
	@($(OLD_SESSIONS)) >/dev/null 2>&1 &
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations 20 $(1) || \
	  { [ $$? = 1 ] && echo "once more, alone:" && $(BIN)/pytest --last-failed --last-failed-no-failures none $(1); }
endef

# The tests start real services (Slurm, sshd, nginx, vsftpd, rsync, git, docker-registry) and run compilers,
# containers, MPI and the programs that people compare with.
PACKAGES := aria2 autoconf automake btrfs-progs busybox-static charliecloud chromium cmake curl docker-registry fish g++ gcc gfortran git git-lfs iproute2 \
  libc6-dev libopenmpi-dev lmod make mariadb-server munge nginx-light openmpi-bin openssh-client openssh-server openssl p7zip-full \
  patch podman quota rclone rsync runc slurm-wlm slurmdbd tcl vsftpd wget xz-utils zip zsh zstd
PROGRAMS := aria2c autoconf automake mkfs.btrfs busybox ch-run chromium cmake curl docker-registry fish g++ gcc gfortran git git-lfs ip make \
  mariadbd munged nginx mpirun ssh sshd openssl 7z patch podman quota rclone rsync runc slurmctld slurmdbd tclsh vsftpd wget \
  xz zip zsh pzstd
system-packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  for program in $(PROGRAMS); do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v $$program >/dev/null && continue; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; \
	    break; \
	  done; \
	fi

# The lessons of the course, executed offline, are in build/course; the site shows them from there.
course: $(VENV)/.dev
	$(BIN)/fairmile course build build/course

# The site is in build/docs; it needs no server: open build/docs/index.html.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -d build/docs-cache docs build/docs
	@echo "file://$(CURDIR)/build/docs/index.html"

# Wheel and sdist, checked; the same commit gives the same bytes.
DIST ?= dist
dist: $(VENV)/.dev
	rm -rf $(DIST)
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} \
	  $(BIN)/uv build -q --no-build-isolation --python $(BIN)/python --out-dir $(DIST) .
	$(BIN)/twine check --strict $(DIST)/*.whl $(DIST)/*.tar.gz

speed: $(VENV)/.dev
	$(BIN)/python speed/start.py
	$(BIN)/python speed/search.py
	$(BIN)/python speed/scale.py
	$(BIN)/python speed/transfer.py
	$(BIN)/python speed/jobs.py
	$(BIN)/python speed/meter.py
	$(BIN)/python speed/watch.py
	$(BIN)/python speed/runs.py
	$(BIN)/python speed/sweeps.py
	$(BIN)/python speed/tuning.py
	$(BIN)/python speed/benchmarks.py
	$(BIN)/python speed/traces.py
	$(BIN)/python speed/web.py
	$(BIN)/python speed/coupling.py
	$(BIN)/python speed/couple.py
	$(BIN)/python speed/accuracy_time.py
	$(BIN)/python speed/accuracy_collectives.py
	$(BIN)/python speed/accuracy_scaling.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# uv installs in a fraction of pip's time. It reads no settings of pip, so it is handed the folders of local wheels.
define install
	$(BIN)/python -m pip install -q -c constraints.txt uv
	UV_FIND_LINKS="$$($(BIN)/python -m pip config list | sed -n "s/^[^=]*find-links='\(.*\)'/\1/p" | head -1 | tr ' ' ',')" \
	  $(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode -c constraints.txt -e $(1) \
	  || $(BIN)/python -m pip install -q -c constraints.txt -e $(1)
endef

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call install,'.[interop,web,plots]')
	$(BIN)/python -m compileall -q src/fairmile
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call install,'.[dev]')
	$(BIN)/python -m compileall -q src/fairmile
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call install,'.[docs]')
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist demo/out docs/about docs/benchmarks docs/course \
	  docs/reference/commands docs/reference/python
