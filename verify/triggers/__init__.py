"""Sources: schedules and triggers of a fleet of real processes that are killed all the while.

`python -m verify.triggers` starts workers and emitters on a store, kills and freezes them
while schedules fire and events are delivered, and then looks in the store whether each moment of
each schedule, and each event for each trigger, was made one task, and that one was done. Processes
are hurt by the supervisor of `verify.torture`.

    fleet    the pools, triggers and schedules that every process declares
    member   the program of one process: a worker, or an emitter
    course   start, hurt, wait until all is done, judge
    judge    every promise, one check each, over what the store holds
"""
