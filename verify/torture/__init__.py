"""Torture: a fleet of real processes on one store, killed and frozen all the while, then audited.

`python -m verify.torture` starts workers and submitters on a store, kills and freezes
them at random while they work, and then proves from three witnesses that no promise was broken:
the *ledger* (what every process saw, written down by itself), the *audit* (what the store says
happened, in order) and the *rows* (what the store holds in the end). Any store with a URL can be
tortured.

    place       the store that is tortured, and what is promised of its kind only
    plan        what is submitted, and what must come of it: all from one seed
    fleet       the pools and handlers that every process declares
    ledger      the append-only file of what processes saw
    member      the program of one process: worker, submitter, canceller, pulse, or idler
    violence    who is hurt next, and how; and the weather of the store itself
    supervisor  starts the processes, hurts them, brings them back
    evidence    ledger, audit and rows, gathered
    replay      the audit in order, each record held against the limits
    auditor     every promise, one check each, over the evidence
    recovery    how long a killed worker's tasks waited until somebody took them back
    cancels     how long it took until a handler noticed that it is cancelled
    course      all of it, one after another
    report      the table, and the same as JSON
"""
