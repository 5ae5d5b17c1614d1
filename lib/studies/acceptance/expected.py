"""Rules that sample their children, in expectation, beside naive sampling of the best children, on the same text."""

from typing import Sequence

import numpy as np
import pandas as pd
import torch

from lib.replay import acceptance, expectation
from lib.replay.trace import Trace
from lib.studies.acceptance import pair_trace
from lib.trees.shapes import parse
from lib.trees.tree import Tree

NAIVE, BLOCK = "naive", "block"
BY_NODE = ("multi_step", "k_seq", "without_replacement")


def survey(
    pair, asked, shapes: Sequence[str], temperatures: Sequence[float], new_tokens: int, seed: int
) -> pd.DataFrame:
    """The table `expected`: a row a prompt, rule, shape and temperature above 0, rounds chained over a text of
    `new_tokens` tokens that the target wrote; pair: see `models`, asked: `recording.Prompts`.
    """
    trees = {shape: parse(shape) for shape in shapes}
    siblings = max((len(tree.children(node)) for tree in trees.values() for node in range(tree.size)), default=0)
    frames = []
    for temperature in filter(None, temperatures):
        recorded = pair_trace.record(
            pair,
            asked,
            max_new_tokens=new_tokens - 1,
            temperature=temperature,
            generator=torch.Generator().manual_seed(seed),
            about={"protocol": acceptance.CONTINUATION},
            siblings=siblings,
        )
        frames += [
            rows.assign(temperature=temperature, shape=shape, budget=tree.budget)
            for shape, tree in trees.items()
            for rows in _rules(recorded, tree, pair.drafter_name)
        ]
    columns = ["rule", "shape", "temperature", "budget", "prompt", "kind", "stretch", "rounds", "accepted"]
    return pd.concat(frames, ignore_index=True)[columns].assign(pair=pair.name) if frames else _none(columns)


def _rules(recorded: Trace, tree: Tree, drafter: str) -> list[pd.DataFrame]:
    """`expectation.tally` of every rule that can be told from the text, for one tree."""
    survive = {rule: expectation.survival(recorded, tree, drafter, rule) for rule in BY_NODE}
    if tree.max_depth == tree.budget:
        survive[BLOCK] = expectation.block_survival(recorded, tree.max_depth, drafter)
    found = [expectation.tally(recorded, chances).assign(rule=rule) for rule, chances in survive.items()]
    replayed = acceptance.tally(recorded, tree, acceptance.rounds_of(recorded, tree, drafter)).assign(rule=NAIVE)
    whole = {"rounds": replayed["rounds"].astype(float), "accepted": replayed["accepted"].astype(float)}
    return [*found, replayed.assign(**whole)[found[0].columns]]


def _none(columns: Sequence[str]) -> pd.DataFrame:
    kinds = {name: np.float64 if name in ("temperature", "rounds", "accepted") else object for name in columns}
    return pd.DataFrame({name: np.zeros(0, kind) for name, kind in kinds.items()}).assign(pair="")


def beside(expected: pd.DataFrame, live: pd.DataFrame) -> pd.DataFrame:
    """The tables `expected` and `live` under one another, where both have the setting; `how` says which, and `label`
    names rule, shape and temperature. Text before a loop alone.
    """
    setting = ["rule", "shape", "temperature"]
    both = pd.concat([expected.assign(how="expected"), live.assign(how="live")], ignore_index=True)
    both = both[(both["stretch"] == "before") & (both["temperature"] > 0)]
    whole = both.groupby(setting)["how"].transform("nunique") == 2
    labels = [f"{row.rule}, {row['shape']}, t = {row.temperature:g}" for _, row in both.iterrows()]
    return both.assign(label=labels)[whole].reset_index(drop=True)
