#!/usr/bin/env bash
# Runs the notebooks, or the tests, in a Python environment that has what requirements.txt asks for.
# ./run_notebooks.sh --help explains the command; lib/__main__.py carries it out.
set -euo pipefail

home="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
requirements="$home/requirements.txt"
own="$home/.venv"

satisfied() { "$1" -I "$home/lib/lab/environment.py" "$requirements"; }

fail() {
  echo "error: $1" >&2
  exit 2
}

# Sets `python` to the first one that is new enough, those first with which the versions are known to work together.
find_python() {
  for python in "${PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
    if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      return
    fi
  done
  fail "no Python 3.11 or newer is on the PATH; install one, or name it: PYTHON=/path/to/python $0"
}

# Makes .venv, or completes it.
install() {
  trap 'echo; echo "stopped while installing; the same command goes on: $0"; exit 130' INT TERM
  if ! "$own/bin/python" -c 'import pip' 2>/dev/null; then
    find_python
    echo "making the environment .venv with $("$python" --version)"
    "$python" -m venv --clear "$own" ||
      fail ".venv could not be made; Python's venv module may be missing (on Debian: apt install python3-venv)"
  fi
  echo "installing what requirements.txt asks for; the first time takes minutes (README.md: how to leave CUDA out)"
  "$own/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" ||
    fail "the installation failed; with network and disk space at hand the same command goes on"
  satisfied "$own/bin/python" || fail ".venv still lacks that; delete it and run the same command"
  trap - INT TERM
}

# Makes lib importable from anywhere in .venv, wherever the project lies now.
link_lib() {
  "$own/bin/python" -I -c 'import pathlib, sys, sysconfig
path, line = pathlib.Path(sysconfig.get_path("purelib"), "draft_trees.pth"), sys.argv[1] + "\n"
if not path.exists() or path.read_text() != line: path.write_text(line)' "$home"
}

# The active environment if it has everything, else .venv.
active="${VIRTUAL_ENV:-${CONDA_PREFIX:-}}"
if [ -n "$active" ] && [ "$active" != "$own" ] && satisfied "$active/bin/python" >/dev/null 2>&1; then
  python="$active/bin/python"
else
  satisfied "$own/bin/python" >/dev/null 2>&1 || install
  link_lib
  python="$own/bin/python"
fi

# Threads that wait for each other soon give their core away: where other work runs too, they may share one.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-10000}"
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"
export PATH="$(dirname -- "$python"):$PATH" # so that what notebooks start comes from the same environment
exec "$python" -m lib "$@"
