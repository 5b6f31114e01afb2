"""Proofs the project runs on itself: torture, chaos, fuzzing, mutants. Not in the wheel."""
