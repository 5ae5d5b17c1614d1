"""Checks of parameters before anything runs: values are given to the functions of lib that the notebooks give them to.

A check gets the parameter's name and all values of its notebook, and raises ValueError, LookupError or OSError. No
weights are read and nothing is downloaded.
"""

import re
from contextlib import chdir, suppress
from math import inf
from pathlib import Path
from typing import Callable, Mapping, Sequence

from huggingface_hub import constants, is_offline_mode
from huggingface_hub.file_download import repo_folder_name

from lib.cost.formats import check as check_formats
from lib.cost.roofline import HARDWARE
from lib.cost.served import read_costs
from lib.drafters.registry import folder_of, made_for
from lib.drafters.registry import DRAFT_MODEL, DRAFTERS, needs
from lib.engines import registry
from lib.forward.load import dtypes_of
from lib.lab import json_text
from lib.lab.plan import RunPlan, UsageError, Value
from lib.measure.advice import of_runs
from lib.drafters.registry import parse as check_drafter
from lib.measure.served import EXAMPLE, kinds_of
from lib.models import checks, gguf, load
from lib.models import prompts as prompt_files
from lib.models.dialogue import has_template
from lib.models.registry import FOLDER, GGUF, HUB, sources
from lib.replay import logs as log_files
from lib.replay.acceptance import FREQUENT
from lib.trees import named

Values = Mapping[str, Value]
Check = Callable[[str, Values], None]
MOST_NODES = 512  # draft nodes: more than a forward pass can verify at a gain; curves over more take hours
MAY_BE_EMPTY = ("drafters", "other_drafters", "more_shapes", "larger_pairs")
MAY_BE_ZERO = ("node", "prefix", "prefix_length", "prefixes", "most_kinds", "format_prompts", "sampled_prompts")


def check(plan: RunPlan) -> None:
    """UsageError for the first value that its notebook would refuse, in the notebook's words."""
    for stage in (stage for stage in plan.stages if not stage.apart):
        for name, read in CHECKS.get(stage.name, {}).items():
            if name not in stage.parameters:
                continue
            try:
                with chdir(plan.layout.notebooks):  # which notebooks run in, and paths are relative to
                    read(name, stage.parameters)
            except (ValueError, LookupError, OSError) as error:
                raise UsageError(plan.as_typed(f"{stage.name}: {error}")) from error
        for name, value in stage.values.items():
            _check_amount(f"{stage.name}: {name}", name, stage.defaults[name], value)
        if plan.has_report and stage.name == "02_acceptance" and 0 not in stage.parameters.get("temperatures", [0]):
            raise UsageError(f"02_acceptance: temperatures is {stage.parameters['temperatures']}; add 0, which "
                             "09_report begins with, or leave 09_report out by naming notebooks")


def files_of(pairs: Sequence[str], prompts: str) -> list[Path]:
    """The files that decide what a study measures: of local models, of the heads of their targets, and of prompts; of a
    model of the hub the file of its cache that holds its commit. Nothing is fetched, and a pair that cannot be found
    has no files: `load_pairs` refuses it.
    """
    files = {prompt_files.file_of(prompts, chat) for chat in (False, True)}
    for pair in pairs:
        target = drafter = None
        with suppress(checks.PairError):
            target, drafter = sources(pair)
            files |= {folder_of(target.name, name) for name in made_for(target.name)}
        for source in filter(None, (target, drafter)):
            if source.kind == GGUF:
                files |= set(gguf.shards(Path(source.where)))
            elif source.kind == FOLDER:
                files.add(Path(source.where))
            elif source.kind == HUB:
                folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=source.where, repo_type="model")
                files.add(folder / "refs" / (source.revision or "main"))
    return sorted(path for path in files if path.exists())


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


def each_name(read: Callable[[str, Values], object], sized: bool = True) -> Check:
    """A check of names, which may hold commas: a number among them is part of a name that was cut at its commas.

    sized: whether a number in a name is one of nodes or levels.
    """

    def names(name: str, values: Values) -> None:
        """Refuse numbers and large trees, then read each name."""
        for member in _members(values[name]):
            if not isinstance(member, str) or member.isdecimal():
                raise ValueError(f"{name} has {member} where a name belongs; put a semicolon after each name if names "
                                 "hold commas, as in 'chain;expansion:2,2,1;'")
        for member in _members(values[name]):
            if sized and max(map(int, re.findall(r"\d+", member)), default=0) > MOST_NODES:
                raise ValueError(f"{member!r} is too large; a draft tree has at most {MOST_NODES} nodes")
            read(member, values)

    return names


def _family(name: str, values: Values) -> None:
    """A family of shapes; trees of FREQUENT need a trace of a pair."""
    if name != FREQUENT or "pairs" not in values:
        named(f"{name}@1", acceptance=[0.5])


nodes = bounded(lambda value: value <= MOST_NODES, f"at most {MOST_NODES} draft nodes")
lengths = bounded(lambda value: type(value) is int and 1 <= value <= MOST_NODES, f"lengths of 1 to {MOST_NODES} tokens")
temperatures = bounded(lambda value: 0 <= value < inf, "0 (greedy) or more")
above_zero = bounded(lambda value: 0 < value < inf, "more than 0, where tokens are sampled")
tree, family = each_name(lambda name, values: named(name)), each_name(_family)
growth_rule = each_name(lambda name, values: named(f"{name}@{values['depth_budget']}"))
drafter = each_name(lambda name, values: check_drafter(name), sized=False)


def within_curves(name: str, values: Values) -> None:
    """The largest budget of the curves of notebook 1."""
    nodes(name, values)
    if values[name] < 4:
        raise ValueError(f"{name} is {values[name]}, too little to grow a tree over; give 4 or more")
    if values["budget"] > values[name]:
        raise ValueError(f"budget is {values['budget']}, beyond {name} {values[name]}, where curves end; lower it, or "
                         "raise both")


def plain_batch_first(name: str, values: Values) -> None:
    """Batch sizes of notebook 7."""
    if values[name][:1] not in ([], [1]):
        raise ValueError(f"{name} begins with {values[name][0]}; put 1 first, the batch at which transformers "
                         "speculates too")


def pairs(name: str, values: Values) -> None:
    """Pairs of models, by their names and by the configurations and tokenizers of local folders."""
    if values[name] or name not in MAY_BE_EMPTY:
        load.check_pairs(values[name])


def larger_pairs(name: str, values: Values) -> None:
    """Pairs with a draft model each, whose cost stands beside."""
    pairs(name, values)
    for pair in values[name]:
        if sources(pair)[1] is None:
            raise ValueError(f"{name} holds {pair!r}, which has no draft model to time: name one, as in {pair}|DRAFTER")


def prompts(name: str, values: Values) -> None:
    """A file of prompts, with enough of each kind for those to choose on and those to judge on.

    "" is the file of each pair that `prompts.load` takes: chat prompts for a target with a chat template, else the
    family's. For targets on the hub, whose tokenizer is not known yet, both files must do.
    """
    known = {_chats(pair) for pair in values["pairs"]} if values[name] == "" else {False}
    for chat in {True, False} if None in known else known:
        rows = prompt_files.rows(prompt_files.file_of(values[name], chat))
        if "choose_prompts" in values:
            prompt_files.split_rows([row.name for row in rows], [row.kind for row in rows], values["choose_prompts"],
                                    values["judge_prompts"])


def _chats(pair: str) -> bool | None:
    """Whether a pair's target has a chat template; None for a hub id, which is only looked up with HF_HUB_OFFLINE."""
    target, _ = sources(pair)
    is_here = target.kind != HUB or is_offline_mode()
    return has_template(load.load_served(target.written, []).tokenizer) if is_here else None


def dtype(name: str, values: Values) -> None:
    """Number formats on the notebook's device."""
    for format_name in _members(values[name]):
        dtypes_of(format_name, values["device"])


def possible_drafters(name: str, values: Values) -> None:
    """Drafters whose heads ship for the target, and for which a pair has a draft model if they need one."""
    drafter(name, values)
    target, *_ = sources(values["pairs"][0])
    for spec in values[name]:
        for head in needs(spec) - {DRAFT_MODEL}:
            folder_of(target.name, head)
        if DRAFT_MODEL in needs(spec) and all(sources(pair)[1] is None for pair in values["pairs"]):
            raise ValueError(f"drafters name {spec!r}, but no pair has a draft model: name one, as in "
                             f"{target.name}|DRAFTER, or leave it out")


def endpoint(name: str, values: Values) -> None:
    """A server's url, with the name of its model, prompts and a temperature."""
    if not values[name]:
        return
    if not re.fullmatch(r"https?://\S+", values[name]):
        raise ValueError(f"endpoint is {values[name]!r}; give a url such as http://127.0.0.1:8000/v1")
    if not values["served"]:
        raise ValueError("served is empty; give the name under which the endpoint serves the model")
    if values["logs"]:
        raise ValueError("both logs and an endpoint are given; give one")
    if values["temperature"] < 0:
        raise ValueError("temperature is below 0; give the one at which the endpoint shall answer, 0 for greedy "
                         "decoding")
    prompt_files.rows(prompt_files.file_of(values["prompts"], has_template=True))


def inputs(name: str, values: Values) -> None:
    """The input file of a batch."""
    if values[name] and not Path(values[name]).expanduser().is_file():
        raise FileNotFoundError(f"no file at {values[name]}; give the batch's input file, or leave inputs out")


def text_drafters(name: str, values: Values) -> None:
    """Kinds that read the text alone; other names are models, which are checked with the target."""
    target = values["target"]
    models = [f"{target}|{model}" for model in kinds_of(values[name])[1]]
    load.check_pairs([target, *models], is_served=True)


def costs(name: str, values: Values) -> None:
    """A table of costs, or hardware by its name."""
    if values[name] not in HARDWARE:
        read_costs(values[name])


def publish(name: str, values: Values) -> None:
    """A folder for files of the atlas."""
    if values[name] and not Path(values[name]).expanduser().is_dir():
        raise ValueError(f"publish is {values[name]!r}, which is no folder; make it first, and give it with a slash: "
                         "./traces")


def rates(name: str, values: Values) -> None:
    """A table of acceptance by depth and rank."""
    if values[name] and not Path(values[name]).expanduser().is_file():
        raise ValueError(f"rates is {values[name]!r}, which is no file; give a CSV file")


def engines(name: str, values: Values) -> None:
    """Serving engines that are installed, and a target with drafters that they can load."""
    for spec in values[name]:
        registry.parse(spec).engine.environment.python
    if values[name]:
        models = [f"{values['target']}|{drafter}" for drafter in values["engine_drafters"] if drafter not in DRAFTERS]
        load.check_pairs([values["target"], *models])


MODELS: Mapping[str, Check] = {"pairs": pairs, "prompts": prompts, "dtype": dtype}  # of every notebook that runs a pair
CHECKS: Mapping[str, Mapping[str, Check]] = {
    "01_shapes": {"families": family, "shape": family, "max_budget": within_curves},
    "02_acceptance": {**MODELS, "temperatures": temperatures, "families": family, "budgets": nodes,
                      "depth_budget": nodes, "chain_lengths": lengths, "growth_rules": growth_rule,
                      "live_shapes": tree, "drafters": drafter, "publish": publish},
    "03_attention_timing": {"dtypes": dtype, "shape": family, "drafts": nodes},
    "04_rules": {**MODELS, "temperatures": temperatures, "live_temperatures": above_zero,
                 "test_temperature": above_zero, "proof_shapes": tree, "exact_shapes": tree, "live_shapes": tree},
    "05_drafters": {**MODELS, "drafters": drafter, "other_drafters": drafter, "shapes": tree, "shape": tree,
                    "grown": nodes},
    "06_advice": {
        **MODELS, "drafters": possible_drafters, "larger_pairs": larger_pairs, "larger_dtype": dtype,
        "elsewhere": lambda name, values: of_runs(values[name], sources(values["pairs"][0])[0].name),
        "lengths": bounded(lambda value: type(value) is int and value > 0, "numbers of tokens, from 1 on"),
        "texts_folder": lambda name, values: values[name] and prompt_files.rows(Path(values[name]).expanduser()),
        "most_nodes": nodes, "formats": lambda name, values: check_formats(values[name])},
    "07_speed": {**MODELS, "drafters": drafter, "policy": drafter, "chain": tree, "more_shapes": tree,
                 "most_nodes": nodes, "batches": plain_batch_first, "sampled_temperatures": above_zero,
                 "rates": rates},
    "08_served": {
        "logs": lambda name, values: next(json_text.lines(values[name] or EXAMPLE), None),
        "endpoint": endpoint, "inputs": inputs, "costs": costs, "dtype": dtype, "most_nodes": nodes,
        "drafters": text_drafters, "engine": engines, "engine_lengths": lengths, "most_depth": above_zero},
}
