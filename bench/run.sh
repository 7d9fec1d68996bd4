#!/bin/sh
# Runs the benchmarks with the interpreter that has domicile: $PYTHON, the active venv's, the repository's .venv, or python3.
#   bench/run.sh            everything, five rounds (about a quarter of an hour)
#   bench/run.sh --quick    one short round of everything (about a minute and a half)
set -eu
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    if [ -n "${VIRTUAL_ENV:-}" ]; then PYTHON=$VIRTUAL_ENV/bin/python
    elif [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python
    else PYTHON=python3; fi
fi
exec "$PYTHON" -m bench "$@"
