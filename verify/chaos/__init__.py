"""Chaos: a fleet under a steady load, one fault at a time, and how soon it is as it was before.

A torture (torture/) hurts everything at once and asks whether anything was lost. Here each fault
stands alone, between a time before it and a time after it, and the question is also how long it
takes until as much is done as before. The load is steady and well below what the fleet can do, so
that a busy machine does not pass for a slow recovery.
"""
