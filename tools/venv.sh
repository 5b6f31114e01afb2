#!/bin/sh
# venv.sh PYTHON FOLDER LOCK: a new virtual environment holding exactly what LOCK names.
# Needs Python 3.11+ with venv and pip, nothing else. uv installs the lock about three times
# quicker than pip; where uv cannot run or cannot reach packages, pip does the work.
set -eu
python=$1 folder=$2 lock=$3
here=$(dirname "$0")/../requirements

command -v "$python" >/dev/null || {
    echo "Millpond needs Python 3.11 or newer; there is no '$python' here. Try: make PYTHON=/path/to/python3" >&2
    exit 1
}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Millpond needs Python 3.11 or newer; '$python' is $("$python" -V). Try: make PYTHON=python3.11" >&2
    exit 1
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
    echo "'$python' has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2
    exit 1
}

"$python" -m venv --clear "$folder"
bin=$folder/bin
export PIP_DISABLE_PIP_VERSION_CHECK=1
quick() {
    "$bin/python" -m pip install --quiet --require-hashes -r "$here/bootstrap.lock" &&
        "$bin/uv" pip install --quiet --python "$bin/python" --require-hashes -r "$lock"
}
quick || {
    echo "uv did not work here; installing with pip, which takes a little longer" >&2
    "$bin/python" -m pip install --quiet --require-hashes -r "$lock"
}
