#!/bin/sh
# peers.sh FOLDER: install beside the benchmarks' environment in FOLDER what does not fit into it:
# graphile-worker, which runs on Node (of a wheel), and oban, which needs Python 3.12 or later.
# Fails if one of them cannot be had, so that the next run tries again; the rest is measured anyway.
set -u
folder=$1
here=$(dirname "$0")/..
missing=0

node() {
    mkdir -p "$folder/node" &&
        cp "$here/bench/node/package.json" "$here/bench/node/package-lock.json" "$here/bench/node/.npmrc" "$folder/node/" &&
        (PATH=$(cd "$folder/bin" && pwd):$PATH && cd "$folder/node" && npm ci --silent)
}

python_for_oban() {
    for python in ${OBAN_PYTHON:-} python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python; do
        "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && {
            echo "$python"
            return
        }
    done
    return 1
}

oban() {
    python=$(python_for_oban) || {
        echo "oban needs Python 3.12 or later, and there is none here: make OBAN_PYTHON=/path/to/python3.12" >&2
        return 1
    }
    "$here/tools/venv.sh" "$python" "$folder/oban" "$here/requirements/oban.lock"
}

node || { echo "graphile-worker could not be installed: it will be MISSING" >&2; missing=1; }
oban || { echo "oban could not be installed: it will be MISSING" >&2; missing=1; }
exit $missing
