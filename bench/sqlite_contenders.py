"""Who is measured by bench/sqlite.py, and what each of them promises."""

from __future__ import annotations

from contender import FULL, NORMAL, OFF, Contender

SURVIVES = {
    FULL: "fsync at each commit: an answered task survives a power cut",
    NORMAL: "fsync at checkpoints: survives kill -9, a power cut takes the latest commits",
    OFF: "no fsync: survives kill -9, a power cut may corrupt the file",
}
SYNCHRONOUS = {OFF: 0, NORMAL: 1, FULL: 2}
"""What `PRAGMA synchronous` answers."""

_OURS = "recovered at once, attempt charged, late settle fenced"
_HUEY = "lost: a task is deleted before it runs"
_LITEQUEUE = "stays locked for ever"
_PERSIST = "claimed again when the file is opened again"

OURS = Contender("millpond full", "millpond", FULL, _OURS)
OURS_NORMAL = Contender("millpond normal", "millpond", NORMAL, _OURS)
HUEY = Contender("huey full", "huey", FULL, _HUEY)
HUEY_OFF = Contender("huey off", "huey", OFF, _HUEY)
LITEQUEUE = Contender("litequeue normal", "litequeue", NORMAL, _LITEQUEUE)
PERSIST = Contender("persist-queue full", "persistqueue", FULL, _PERSIST)

CONTENDERS = {one.name: one for one in (OURS, OURS_NORMAL, HUEY, HUEY_OFF, LITEQUEUE, PERSIST)}
PEERS = (HUEY, HUEY_OFF, LITEQUEUE, PERSIST)
PACKAGES = {"huey": "huey", "litequeue": "litequeue", "persistqueue": "persist-queue"}
"""The package in which a kind comes."""
