"""Running notebooks and keeping what they measure; knows nothing of trees or models.

The command: start at `plan` (what a command means), then `run` (carries it out, keeps run.json) and `execute` (one
notebook through papermill). `cluster` spreads work over processes and machines, and says what a large study costs.
Tables: `tables` (columns and rows) on `atomic_file`. `findings` shows figures and tables. What made a number:
`provenance`, `environment`. Measuring: `timing`, `counters`, `processor`. Statistics: `stats`. Charts: `theme`,
`charts`, `pictures`. Files of others: `json_text`.
"""
