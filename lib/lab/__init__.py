"""Running notebooks and keeping what they measure; knows nothing of trees or models.

The command: `plan` (what a command asks for), `run` (carries it out), `execute` (one notebook through papermill),
`record` (run.json and fingerprints), `parameters`, `readme`, `errors`. Tables: `schema`, `tables` on `atomic_file`.
What made a number: `provenance`, `environment`. Measuring: `timing`, `forward_clock`, `counted_bytes`, `processor`.
Statistics: `stats`. Charts: `theme`, `charts`, `pictures`.
"""
