#!/bin/sh
# coverage.sh PYTHON JOBS [TESTS...]: run tests, all without TESTS, and print what they reach of the
# package: statements and branches, also those that only processes started by tests reach. A process
# that a test kills takes its figures with it, so the truth is a little higher.
set -u
python=$1 jobs=$2
shift 2
cd "$(dirname "$0")/.."
rm -f .coverage .coverage.*
# Tracing makes everything slower, so a test may take longer.
"$python" -m coverage run -m pytest -q -n "$jobs" --timeout 240 "${@:-tests}"
tests=$?
"$python" -m coverage combine --quiet &&
    "$python" -m coverage json --quiet -o - | "$python" tools/coverage_table.py || exit 1
[ $tests = 0 ] || echo "some tests failed, so the figures are of little use" >&2
exit $tests
