"""Checks of parameters before anything runs: values are given to the functions of lib that the notebooks give them to.

Each study's `schema` declares which check each of its parameters takes. A check gets the parameter's name and all
values of its notebook, and raises ValueError, LookupError or OSError. No weights are read and nothing is downloaded.
"""

import re
from contextlib import chdir
from math import inf
from typing import Callable, Mapping

from lib.lab.plan import Plan, UsageError, Value

Values = Mapping[str, Value]
Check = Callable[[str, Values], None]
MOST_NODES = 512  # draft nodes: more than a forward pass can verify at a gain; curves over more take hours
MAY_BE_EMPTY = ("drafters", "other_drafters", "more_shapes", "larger_pairs")
MAY_BE_ZERO = ("node", "prefix", "prefix_length", "prefixes", "most_kinds", "format_prompts", "sampled_prompts")


def check(plan: Plan, checks: Mapping[str, Mapping[str, Check]]) -> None:
    """UsageError for the first value that its notebook would refuse, in the notebook's words. checks: by notebook."""
    for stage in plan.stages:
        for name, read in checks.get(stage.name, {}).items():
            if name not in stage.parameters:
                continue
            try:
                with chdir(plan.layout.notebooks):  # which notebooks run in, and paths are relative to
                    read(name, stage.parameters)
            except (ValueError, LookupError, OSError) as error:
                raise UsageError(plan.as_typed(f"{stage.name}: {error}")) from error
        for name, value in stage.values.items():
            _check_amount(f"{stage.name}: {name}", name, stage.defaults[name], value)
    if plan.has_report:
        acceptance = {stage.name: stage.parameters for stage in plan.stages}.get("02_acceptance", {})
        if 0 not in acceptance.get("temperatures", [0]):
            raise UsageError(f"02_acceptance: temperatures is {acceptance['temperatures']}; add 0, which 09_report "
                             "begins with, or leave 09_report out by naming notebooks")


def _check_amount(where: str, name: str, default: Value, value: Value) -> None:
    """UsageError for an empty list, a repeated member, or a whole number that is too small, judged by the default."""
    if value == [] and default and name not in MAY_BE_EMPTY:
        raise UsageError(f"{where} is empty; give at least one value, such as {default[0]!r}")
    members = _members(value)
    repeated = [member for place, member in enumerate(members) if member in members[:place]]
    if repeated:
        raise UsageError(f"{where} names {repeated[0]!r} twice; name each once")
    first = next(iter(default), None) if isinstance(default, list) else default
    least = 0 if name in MAY_BE_ZERO or first == 0 else 1
    for number in members:
        if type(number) is type(first) is int and number < least:
            raise UsageError(f"{where} is {number}; give a whole number of at least {least}")


# -------------------------------------------------------------------------------------------------- checks of any value


def _members(value: Value) -> list:
    return value if isinstance(value, list) else [value]


def bounded(fits: Callable[[float], bool], wanted: str) -> Check:
    """A check that each number fits; wanted: what to give, in words."""

    def numbers(name: str, values: Values) -> None:
        """Refuse the first number that does not fit."""
        for value in _members(values[name]):
            if not fits(value):
                raise ValueError(f"{name} is {value}; give {wanted}")

    return numbers


nodes = bounded(lambda value: value <= MOST_NODES, f"at most {MOST_NODES} draft nodes")
lengths = bounded(lambda value: type(value) is int and 1 <= value <= MOST_NODES, f"lengths of 1 to {MOST_NODES} tokens")
temperatures = bounded(lambda value: 0 <= value < inf, "0 (greedy) or more")
above_zero = bounded(lambda value: 0 < value < inf, "more than 0, where tokens are sampled")


def each_name(read: Callable[[str, Values], None]) -> Check:
    """A check of names, which may hold commas: a number among them is part of a name that was cut at its commas."""

    def names(name: str, values: Values) -> None:
        """Refuse numbers, then read each name."""
        for member in _members(values[name]):
            if not isinstance(member, str) or member.isdecimal():
                raise ValueError(f"{name} has {member} where a name belongs; put a semicolon after each name if names "
                                 "hold commas, as in 'chain;expansion:2,2,1;'")
        for member in _members(values[name]):
            read(member, values)

    return names


# ------------------------------------------------------------------------------------------- checks of what values name


def pairs(name: str, values: Values) -> None:
    """Pairs of models, by their names and by the configurations and tokenizers of local folders."""
    from lib.models.load import check_pairs

    if values[name] or name not in MAY_BE_EMPTY:
        check_pairs(values[name])


def prompts(name: str, values: Values) -> None:
    """A file of prompts, with enough of each kind for those to choose on and those to judge on.

    "" is the file of each pair that `prompts.load` takes: chat prompts for a target with a chat template, else the
    family's. For targets on the hub, whose tokenizer is not known yet, both files must do.
    """
    from lib.models import load
    from lib.models import prompts as files

    known = {load.chats(pair) for pair in values["pairs"]} if values[name] == "" else {False}
    for chat in {True, False} if None in known else known:
        _, kinds = files.check(values[name], chat)
        if "choose_prompts" in values:
            files.split_rows(kinds, values["choose_prompts"], values["judge_prompts"])


def dtype(name: str, values: Values) -> None:
    """Number formats on the notebook's device."""
    from lib.models import checks

    for one in _members(values[name]):
        for part in checks.dtypes_of(one, values["device"]):
            checks.check_device(values["device"], part)


def _check_size(name: str) -> None:
    """ValueError for a shape or growth rule that would make a large tree, before the tree is made."""
    if max(map(int, re.findall(r"\d+", name)), default=0) > MOST_NODES:
        raise ValueError(f"{name!r} is too large; a draft tree has at most {MOST_NODES} nodes")


def _tree(name: str, values: Values) -> None:
    from lib.trees.shapes import parse

    _check_size(name)
    parse(name)


def _family(name: str, values: Values) -> None:
    from lib.replay.acceptance import FREQUENT
    from lib.trees.shapes import at_budget

    _check_size(name)
    if name != FREQUENT or "pairs" not in values:  # trees of this family need a trace of a pair
        at_budget(name, 1, acceptance=[0.5])


def _growth_rule(name: str, values: Values) -> None:
    from lib.trees.growth.registry import at_budget

    _check_size(name)
    at_budget(name, values["depth_budget"])


def _drafter(name: str, values: Values) -> None:
    from lib.studies.drafters.measure import check as check_drafter

    check_drafter(name)


tree, family, growth_rule, drafter = map(each_name, (_tree, _family, _growth_rule, _drafter))
MODELS: Mapping[str, Check] = {"pairs": pairs, "prompts": prompts, "dtype": dtype}  # of every notebook that runs a pair


# ------------------------------------------------------------------------------------------------------------ 01_shapes


def _within_curves(name: str, values: Values) -> None:
    nodes(name, values)
    budget, largest = values["budget"], values[name]
    if largest < 4:
        raise ValueError(f"{name} is {largest}, too little to grow a tree over; give 4 or more")
    if budget > largest:
        raise ValueError(f"budget is {budget}, beyond {name} {largest}, where curves end; lower it, or raise both")


SHAPES: Mapping[str, Check] = {"families": family, "shape": family, "max_budget": _within_curves}
