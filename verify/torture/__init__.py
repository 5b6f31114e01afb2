"""Torture: kill and freeze a fleet of real processes on one store, then audit the results.

`python -m verify.torture` starts workers and submitters on a store, kills and freezes
them at random while they work, and then proves from three witnesses that no promise was broken:
the *ledger* (what every process saw, written down by itself), the *audit* (what the store says
happened, in order) and the *rows* (what the store holds in the end). Any store with a URL can be
tortured.

    store_setup     the store under test, and the promises of its kind
    plan            the submitted tasks and their expected results, from one seed
    fleet           the pools and handlers that every process declares
    ledger          the append-only file in which processes record events
    member          the program of one process: worker, submitter, canceller, pulse, or idler
    fault_schedule  faults of processes (kill, freeze, stop) and of the store (cut, crash)
    supervisor      starts the processes, injects the faults, restarts the processes
    evidence        collects ledger, audit and rows
    replay          replays the audit in order, and checks each record against the limits
    auditor         checks every promise over the evidence
    recovery        how long the tasks of a killed worker waited until they were recovered
    cancels         how long handlers took to notice a cancel
    run             all steps, in order
    report          the table, and the same as JSON
"""
