#!/bin/sh
# wheel_test.sh PYTHON: build wheel and sdist with the hatchling of PYTHON, and use the wheel as a user
# would: in new environments, far from this repository, once without extras and once with all of them.
# What passed is left in dist/, to be published as it is.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."
root=$PWD
unset PYTHONPATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

echo "== build"
rm -rf dist
"$python" -m hatchling build --directory dist >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
wheel=$(ls "$root"/dist/*.whl)
ls -l dist

echo "== the sdist makes the same wheel"
mkdir "$work/sdist" "$work/rebuilt"
tar -xzf dist/*.tar.gz -C "$work/sdist" --strip-components 1
(cd "$work/sdist" && "$python" -m hatchling build --target wheel --directory "$work/rebuilt") >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
"$python" tools/same_wheel.py "$wheel" "$work"/rebuilt/*.whl src

# use KIND REQUIREMENT: install it in an environment of its own, and do what a user does first.
use() {
    echo "== $1: pip install $(basename "$2")"
    "$python" -m venv "$work/$1"
    "$work/$1/bin/python" -m pip install --quiet "$2"
    "$work/$1/bin/python" -m pip check
    mkdir "$work/$1-place"
    cp tools/smoke.py "$work/$1-place"
    cd "$work/$1-place"
    "$work/$1/bin/python" -c 'import millpond'
    "$work/$1/bin/python" smoke.py "$1"
    "$work/$1/bin/millpond" demo --speed 3 >demo.txt || { cat demo.txt; exit 1; }
    echo "ok  millpond demo"
    cd "$root"
}

use bare "$wheel"
use all "$wheel[all]"
echo "== done: dist/ is tested"
