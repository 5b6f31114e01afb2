"""Parts of a lease: how often it is renewed, and how late a renewal may be."""

RENEWALS_PER_LEASE = 3

SLOW = 0.1
"""The part of a lease by which a renewal may be late; beyond it the store itself was away."""
