#!/bin/sh
# Runs the benchmarks with the interpreter that has domicile: $PYTHON, the active venv's, the repository's .venv, or python3.
#   bench/run.sh              both runs, five rounds each (about three quarters of an hour)
#   bench/run.sh --one-node   only one node beside two other things;  --cluster: only three nodes beside four
#   bench/run.sh --quick      one short round of everything (a few minutes)
set -eu
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    if [ -n "${VIRTUAL_ENV:-}" ]; then PYTHON=$VIRTUAL_ENV/bin/python
    elif [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python
    else PYTHON=python3; fi
fi
# etcd is driven by h2load, which only a distribution has. Without it the run of the cluster skips that peer and says so.
case " $* " in
*" --one-node "* | *" --help "*) ;;
*)
    if ! command -v h2load >/dev/null; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "h2load, which drives etcd, is missing: installing nghttp2-client"
            apt-get install -y -q nghttp2-client >/dev/null || echo "that failed: etcd will be skipped"
        else
            echo "h2load, which drives etcd, is missing (Debian: sudo apt install nghttp2-client): etcd will be skipped"
        fi
    fi
    ;;
esac
exec "$PYTHON" -m bench "$@"
