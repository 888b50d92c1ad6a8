# `make demo` and `make test` do all the set-up on a fresh machine. PYTHON picks the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Byte code makes the command start fast; a shell may have switched it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint unit system-packages speed clean

demo: $(VENV)/.demo
	@FAIRMILE=$(BIN)/fairmile PYTHON=$(BIN)/python bash demo/demo.sh

test: system-packages $(VENV)/.dev lint unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/pytest -n auto --dist loadfile

# The tests start real servers (sshd, nginx, vsftpd, rsync, git, Git LFS) and run the programs that people compare with.
PACKAGES := aria2 btrfs-progs curl gcc git git-lfs iproute2 libc6-dev nginx-light openssh-client openssh-server openssl \
  p7zip-full quota rclone rsync vsftpd wget xz-utils zip zstd
PROGRAMS := aria2c mkfs.btrfs curl gcc git git-lfs ip nginx ssh sshd openssl 7z quota rclone rsync vsftpd wget xz zip pzstd
system-packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  for program in $(PROGRAMS); do \
	    PATH="$$PATH:/usr/sbin:/sbin" command -v $$program >/dev/null && continue; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; \
	    break; \
	  done; \
	fi

speed: $(VENV)/.dev
	$(BIN)/python speed/start.py
	$(BIN)/python speed/search.py
	$(BIN)/python speed/transfer.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e '.[interop]'
	$(BIN)/python -m compileall -q src/fairmile
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q src/fairmile
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo/out
