"""Tasks of a batch that are alike: they differ by their arguments and idempotency keys only."""

from __future__ import annotations

from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from millpond.core.spec import OrderKind
from millpond.core.task import Call, NewTask
from millpond.pool.payload.signature import fingerprint
from millpond.pool.task import BoundCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millpond.pool.declared_pool import DeclaredPool

_KEY = "idempotency_key"
_set = msgspec.structs.force_setattr


def alike_tasks(
    pool: DeclaredPool,
    works: Sequence[object],
    at: int,
    made: NewTask,
    options: Mapping[str, Any],
) -> list[NewTask]:
    """Return the tasks of the calls behind one, up to the first that is not alike.

    `made` is the task of that one. The tasks are alike if they are calls of the same function
    without options, or with an idempotency key only.
    """
    first = works[at]
    if (
        type(first) is not BoundCall
        or pool.spec.order.kind is OrderKind.FAIR
        or first.function._internals.has_key  # noqa: SLF001 - of a TaskFunction
        or not _only_key(first._options)  # noqa: SLF001 - of a BoundCall
        or options.get(_KEY) is not None
    ):
        return []
    return _following(islice(works, at + 1, None), first, made, pool.runtime.new_id)


def _following(
    works: islice[object], first: BoundCall[Any], made: NewTask, new_id: Callable[[], int]
) -> list[NewTask]:
    function, name = first.function, made.call.function
    signature = function._internals.signature  # noqa: SLF001 - of a TaskFunction
    encode, quickly = signature.encode, signature.quickly
    pattern: Any = copy(made)
    _set(pattern, _KEY, None)
    _set(pattern, "fingerprint", 0)
    # All else was checked when the first of them was made.
    copied: Callable[[], NewTask] = pattern.__copy__
    tasks = []
    for call in works:
        if type(call) is not BoundCall or call.function is not function:
            break
        options = call._options  # noqa: SLF001 - of a BoundCall
        if options and not _only_key(options):
            break
        payload = None if call.kwargs else quickly(call.args)
        if payload is None:
            payload = encode(call.args, call.kwargs)
        new = copied()
        _set(new, "id", new_id())
        _set(new, "call", Call(name, payload))
        if options and (key := options[_KEY]) is not None:
            _set(new, _KEY, key)
            _set(new, "fingerprint", fingerprint(name, payload))
        tasks.append(new)
    return tasks


def _only_key(options: Mapping[str, Any]) -> bool:
    """Return whether there is no option but an idempotency key."""
    return not options or (len(options) == 1 and _KEY in options)


def all_have_keys_or_none(tasks: Sequence[NewTask]) -> bool:
    """Return whether all tasks have idempotency keys, or none has."""
    return [new.idempotency_key for new in tasks].count(None) in (0, len(tasks))
