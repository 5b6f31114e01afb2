"""Pools as their users see them: tasks, their arguments, and the loop that runs them."""
