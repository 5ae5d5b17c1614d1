"""Running notebooks and keeping what they measure; knows nothing of trees or models.

Start at `chapter`, what a notebook calls. The command: `plan` (what a command means; `parameters` reads and checks
values), then `runner` (carries it out, keeps run.json) and `execute` (one notebook through papermill, its page by
`page.html.j2`). `cluster` spreads work over processes and machines. Files: `tables` (columns and rows) on
`atomic_file`, `json_lines`. What made a number: `provenance`, `environment`. Measuring: `timing`, `processor`.
Statistics: `stats`, `units`. Figures: `theme`, `charts`.
"""
