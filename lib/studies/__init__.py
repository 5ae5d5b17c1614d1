"""One folder per study: `measure` makes the rows, `schema` declares their tables, `findings` says what they mean,
`figures` draws them. `parameters` checks what a command sets.

A new study is one folder, one notebook and its name in `STUDIES`.
"""

from importlib import import_module

from lib.lab.tables import register

STUDIES = ("acceptance", "advice", "drafters", "rules", "speed", "attention", "served")  # in the order of the report

NOTEBOOKS = {}  # notebook of each study -> the checks of its parameters

for _study in STUDIES:
    _declared = import_module(f"{__name__}.{_study}.schema")
    register(_declared.TABLES)
    NOTEBOOKS[_declared.NOTEBOOK] = _declared.PARAMETERS
