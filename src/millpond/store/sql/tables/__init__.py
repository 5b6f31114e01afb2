"""The tables of a unit of work, each over its rows: tasks, pools, workers, runs, timers."""
