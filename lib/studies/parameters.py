"""What parameters' values name, looked up before anything runs by the functions of lib that the notebooks give them to.

No weights are read and the hub is not asked: what only it knows, a notebook finds out.
"""

from contextlib import chdir
from itertools import product
from typing import Callable, Mapping

from lib.lab import parameters
from lib.lab.errors import UsageError
from lib.lab.plan import REPORT, Plan

Values = Mapping[str, parameters.Value]
ACCEPTANCE = "02_acceptance"
MAY_BE_EMPTY = ("drafters", "other_drafters", "more_shapes", "larger_pairs")
MAY_BE_ZERO = ("node", "prefix", "prefix_length", "prefixes", "forward_prefix", "most_kinds", "format_prompts")


def check(plan: Plan) -> None:
    """UsageError for the first value that its notebook would refuse, in the same words, or could not count with."""
    seen = set()
    for stage in plan.stages:
        defaults = parameters.defaults(plan.layout.notebooks / f"{stage.name}.ipynb")
        values = defaults | dict(stage.values)
        for name, read in READERS.items():
            if name not in values or (same := (name, repr(sorted(values.items())))) in seen:
                continue
            seen.add(same)
            try:
                with chdir(plan.layout.notebooks):  # where notebooks run, and what paths are relative to
                    read(values)
            except (ValueError, LookupError, OSError) as error:
                raise UsageError(f"{stage.name}: {error}") from error
        for name, value in stage.values.items():
            _check_amount(f"{stage.name}: {name}", name, defaults[name], value)
    _check_headlines({stage.name: stage.values for stage in plan.stages})


def _check_amount(where: str, name: str, default: parameters.Value, value: parameters.Value) -> None:
    """UsageError for a list that has a member twice, for one that is empty, or a whole number that is too small, where
    the default shows that one needs members and the other counts something.
    """
    if value == [] and default and name not in MAY_BE_EMPTY:
        raise UsageError(f"{where} is empty; give at least one value, such as {default[0]!r}")
    twice = [one for place, one in enumerate(value) if one in value[:place]] if isinstance(value, list) else []
    if twice:
        raise UsageError(f"{where} names {twice[0]!r} twice; name each once")
    first = next(iter(default), None) if isinstance(default, list) else default
    least = 0 if name in MAY_BE_ZERO or first == 0 else 1
    for number in value if isinstance(value, list) else [value]:
        if type(number) is type(first) is int and number < least:
            raise UsageError(f"{where} is {number}; give a whole number of at least {least}")


def _check_headlines(stages: Mapping[str, Values]) -> None:
    """UsageError where the report is asked for, and its headlines, which are greedy, would have nothing to rest on."""
    asked = stages.get(ACCEPTANCE, {}).get("temperatures", [0.0])
    if REPORT in stages and 0 not in asked:
        raise UsageError(f"{ACCEPTANCE}: temperatures is {asked}; add 0, which {REPORT} begins with, or leave {REPORT} "
                         "out by naming notebooks")


def _pairs(values: Values) -> None:
    from lib import models

    models.check_pairs(values["pairs"])


def _prompts(values: Values) -> None:
    from lib.models import prompts
    from lib.studies.acceptance import recording

    names, kinds = prompts.check(values["prompts"])
    if "choose_prompts" in values:
        recording.split_prompts(names, kinds, names, choose=values["choose_prompts"], judge=values["judge_prompts"])


def _device(values: Values) -> None:
    from lib.models import checks

    asked = map(checks.as_dtype, values["dtypes"]) if "dtypes" in values else checks.dtypes_of(values["dtype"])
    for dtype in asked:
        checks.check_device(values["device"], dtype)


def _larger_pairs(values: Values) -> None:
    from lib import models
    from lib.models import checks

    if values["larger_pairs"]:
        models.check_pairs(values["larger_pairs"])
    for dtype in checks.dtypes_of(values["larger_dtype"]):
        checks.check_device(values["device"], dtype)


def _temperatures(values: Values) -> None:
    for temperature in values["temperatures"]:
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature is {temperature}; give 0 (greedy) or more")


def _sampled(name: str) -> Callable[[Values], None]:
    """Reads temperatures at which rules decide what is sampled."""

    def warm(values: Values) -> None:
        """All of them, or the one."""
        for temperature in values[name] if isinstance(values[name], list) else [values[name]]:
            if not 0 < temperature < float("inf"):
                raise ValueError(f"{name} is {temperature}; give more than 0, since rules decide samples there")

    return warm


def _costs(values: Values) -> None:
    from lib import cost, models

    if values["costs"]:
        known = cost.Costs.load(values["costs"])
        for name in values["pairs"]:
            target, drafter = models.sources(name)
            for own, batch in product([drafter.short, *values["heads"]], values["batches"]):
                known.at(target.short, own, batch=batch, prefix=values["prefix"])


def _within_curves(values: Values) -> None:
    budget, largest = values["budget"], values["max_budget"]
    if largest < 4:
        raise ValueError(f"max_budget is {largest}, too little to grow a tree over; give 4 or more")
    if budget > largest:
        raise ValueError(f"budget is {budget}, beyond max_budget {largest}, where curves end; lower it, or raise both")


def _plain_batch(values: Values) -> None:
    first = values["batches"][:1]
    if first not in ([], [1]):
        raise ValueError(f"batches begins with {first[0]}; put 1 first, the batch at which transformers speculates too")


def _heads(values: Values) -> None:
    from lib import models
    from lib.drafters import heads

    for name in values["pairs"]:
        for kind in values["heads"]:
            heads.check_shipped(models.sources(name)[0].short, kind)


def _drafter(spec: str, values: Values) -> None:
    from lib.studies.drafters import measure

    measure.check(spec)


def _protocol(values: Values) -> None:
    from lib.replay import acceptance

    acceptance.check_protocol(values["text"])


def _tree(name: str, values: Values) -> None:
    from lib.trees import shapes

    shapes.parse(name)


def _family(name: str, values: Values) -> None:
    from lib.replay import acceptance
    from lib.trees import shapes

    if name != acceptance.FREQUENT or "pairs" not in values:  # which is grown from what models say
        shapes.at_budget(name, 1, acceptance=[0.5])


def _shape(values: Values) -> None:
    (_tree if "shapes" in values else _family)(values["shape"], values)


def _growth(rule: str, values: Values) -> None:
    from lib.trees import growth

    growth.at_budget(rule, values["depth_budget"])


def _each(name: str, read: Callable[[str, Values], None]) -> Callable[[Values], None]:
    """Reads every member of a list, or the one text that a parameter is."""

    def members(values: Values) -> None:
        """All of them, whatever they are beside."""
        found = [values[name]] if isinstance(values[name], str) else values[name]
        number = next((member for member in found if not isinstance(member, str) or member.isdecimal()), None)
        if number is not None:
            raise ValueError(f"{name} has {number} where a name belongs; put a semicolon behind each name where one "
                             "holds commas, as in 'chain;expansion:2,2,1;'")
        for member in found:
            read(member, values)

    return members


# Parameter -> what reads it, given all values of its notebook.
READERS: dict[str, Callable[[Values], None]] = {
    "pairs": _pairs, "larger_pairs": _larger_pairs, "prompts": _prompts, "device": _device, "costs": _costs,
    "heads": _heads, "text": _protocol,
    "temperatures": _temperatures, "shape": _shape, "families": _each("families", _family),
    "growth_rules": _each("growth_rules", _growth), "lockstep_batches": _plain_batch,
    "max_budget": _within_curves,
} | {name: _sampled(name) for name in ("live_temperatures", "test_temperature")} | {
    name: _each(name, _drafter) for name in ("drafters", "other_drafters", "policy")} | {
    name: _each(name, _tree)
    for name in ("shapes", "live_shapes", "proof_shapes", "exact_shapes", "cost_shapes", "chain", "more_shapes")}
