"""The frames that a parent and its child process exchange.

A frame is a header (length of the body, nonce of the job, kind) and a body of fields, each with its
length before it. Reading it takes `struct` alone: a child is to start with few imports.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("!Q16sB")
LENGTH = struct.Struct("!Q")

# The body of one frame; a peer that announces more is not read.
LARGEST = 64 * 1024 * 1024

# Down, from the parent.
RUN = 1  # module, qualname, payload, context, name of the main module, path of the main file
CANCEL = 2  # the reason, or nothing
CLOSE = 3  # no field
# Both ways.
MESSAGE = 4  # the message
# Up, from the child: the answer, once per job.
DONE = 5  # the value
BROKE = 6  # kind, message, traceback, data, LOADED or nothing

LOADED = b"loaded"

# The nonce of what belongs to no job.
NO_NONCE = bytes(16)


def packed(kind: int, nonce: bytes, *fields: bytes) -> bytes:
    """Return the frame as it goes over the wire."""
    parts = [b""]
    for field in fields:
        parts += (LENGTH.pack(len(field)), field)
    parts[0] = HEADER.pack(sum(map(len, parts)), nonce, kind)
    return b"".join(parts)


def unpacked(body: bytes) -> list[bytes]:
    """Return the fields of a body; ValueError if it is not made of whole fields."""
    fields = []
    at = 0
    while at < len(body):
        start = at + LENGTH.size
        if start > len(body):
            raise ValueError("a field's length is cut off")
        (length,) = LENGTH.unpack_from(body, at)
        at = start + length
        if at > len(body):
            raise ValueError("a field is cut off")
        fields.append(body[start:at])
    return fields


def fitting(message: bytes) -> bytes:
    """Return the message; ValueError if no frame can hold it."""
    if len(message) > LARGEST - LENGTH.size:
        raise ValueError(f"a message of {len(message)} bytes is larger than 64 MiB")
    return message
