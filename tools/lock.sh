#!/bin/sh
# lock.sh UV [NAME...]: resolve requirements/NAME.in into requirements/NAME.lock, all names without NAME.
# `oldest` and `newest` are dev.in with the oldest and the newest versions that pyproject.toml allows.
set -eu
case $1 in */*) uv=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") ;; *) uv=$1 ;; esac
shift
cd "$(dirname "$0")/../requirements"

resolve() { # resolve LEAST_PYTHON LOCK ARGUMENTS...
    least=$1 lock=$2
    shift 2
    "$uv" pip compile --quiet --universal --python-version "$least" --generate-hashes --no-header \
        --no-annotate --upgrade -o "$lock" "$@"
}

# The oldest direct dependencies are constraints, so that the tools of the suite stay new.
oldest() {
    floor=$(mktemp)
    trap 'rm -f "$floor"' EXIT
    resolve 3.11 "$floor" --resolution lowest-direct --all-extras ../pyproject.toml
    resolve 3.11 oldest.lock --all-extras -c "$floor" dev.in ../pyproject.toml
}

if [ $# = 0 ]; then
    set -- bootstrap dev oldest bench oban site
    for file in postgres-*.in; do set -- "$@" "${file%.in}"; done
fi
for name in "$@"; do
    case $name in
    oldest) oldest ;;
    newest) resolve 3.11 newest.lock --all-extras dev.in ../pyproject.toml ;;
    postgres-* | oban) resolve 3.12 "$name.lock" "$name.in" ;;
    *) resolve 3.11 "$name.lock" "$name.in" ;;
    esac
done
