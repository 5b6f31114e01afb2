#!/bin/sh
# pgbouncer.sh FOLDER: print where a pgbouncer is: $MILLPOND_TEST_PGBOUNCER, the system's, or one that
# apt downloads and that is unpacked into FOLDER, where nothing else of the system changes.
set -u
folder=$1
found=${MILLPOND_TEST_PGBOUNCER:-$(PATH=$PATH:/usr/sbin:/usr/local/sbin command -v pgbouncer)}
if [ -n "$found" ]; then
    echo "$found"
    exit 0
fi
program=$folder/pgbouncer
unpacked() {
    mkdir -p "$folder/deb" && folder=$(cd "$folder" && pwd) && program=$folder/pgbouncer || return 1
    (cd "$folder/deb" && apt-get download -q pgbouncer libevent-2.1-7 libc-ares2 >&2) || return 1
    for package in "$folder"/deb/*.deb; do dpkg-deb -x "$package" "$folder/tree" || return 1; done
    libraries=$(dirname "$(find "$folder/tree" -name 'libcares.so.2' | head -1)")
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' \
        "$libraries" "$folder/tree/usr/sbin/pgbouncer" >"$program" && chmod +x "$program"
}
[ -x "$program" ] || unpacked || {
    echo "PGBOUNCER IS ABSENT, so nothing was tested through it: install it (Debian and Ubuntu: apt install" >&2
    echo "pgbouncer; macOS: brew install pgbouncer), or name one: make MILLPOND_TEST_PGBOUNCER=/path/to/pgbouncer" >&2
    exit 1
}
"$program" -V >/dev/null || exit 1
(cd "$(dirname "$program")" && echo "$PWD/pgbouncer")
