"""One folder per study: `measure` makes the rows, `schema` declares their tables, `findings` says what they mean,
`figures` draws them. `explorers` are the widgets, `parameters` checks what a command sets.

A new study is one folder, one notebook and its name in `STUDIES`.
"""

from importlib import import_module

from lib.lab.schema import register

STUDIES = ("acceptance", "attention", "rules", "drafters", "advice", "speed")

for _study in STUDIES:
    register(import_module(f"{__name__}.{_study}.schema").TABLES)
