"""The studies: one file each, whose functions measure models and fill a run's tables. Notebooks call them through
`lib.lab.chapter` and draw what they found. `parameters` checks what a command sets before anything runs, and `gpu` is a
command of its own.
"""
