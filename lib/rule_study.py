"""What rules are worth, exactly: every rule on random languages of a few tokens, over shapes, temperatures and drafters."""

from itertools import product
from typing import Sequence

import pandas as pd
import torch

from lib import bounds, enumeration
from lib.shapes import parse
from lib.small_languages import Logits
from lib.verify import RULES

BOUND = "bound"  # stands where a rule's name does: what none can beat


def exact(
    shapes: Sequence[str],
    *,
    temperatures: Sequence[float],
    agreements: Sequence[float],
    languages: int,
    seed: int,
    vocabulary: int = 3,
    pairs: Sequence[tuple[str, str]] | None = None,
    bounded: bool = True,
) -> pd.DataFrame:
    """A row a language, agreement, temperature, shape and (rule, proposal); all of RULES where no `pairs` are named.

    Languages are random, each with a drafter of each agreement (see `small_languages.Logits`); target and drafter are
    warped by the same temperature. accepted: expected accepted length. distance: total variation between what is
    emitted, continued to depth + 1 tokens, and the target's law. Rows of the rule "bound" hold the joint transport.
    """
    rows = []
    for language, shape in product(range(languages), shapes):
        tree = parse(shape)
        generator = torch.Generator().manual_seed(seed + language)
        target = Logits.random(vocabulary, tree.max_depth, generator)
        for agreement, temperature in product(agreements, temperatures):
            drafted_by = target.related(agreement, torch.Generator().manual_seed(seed + language + 1_000_003))
            says, drafts = target.language(temperature), drafted_by.language(temperature)
            setting = {"language": language, "agreement": agreement, "temperature": temperature, "shape": shape}
            for rule, proposal in pairs or sampled_rules(tree):
                law = enumeration.law(rule, says, drafts, tree, proposal)
                far = enumeration.distance(law, says, tree.max_depth + 1)
                rows.append(setting | _row(rule, proposal, law.accepted_length, law.drafted, far))
            for proposal in _proposals(rows, setting) if bounded else ():
                best = bounds.best_accepted_length(says, drafts, tree, proposal)
                rows.append(setting | _row(BOUND, proposal, best, float("nan"), 0.0))
    return pd.DataFrame(rows)


def sampled_rules(tree) -> list[tuple[str, str]]:
    """Every rule for a tree above temperature 0, with every proposal that it is valid for."""
    fitting = [rule for rule in RULES.values() if rule.shapes == "any" or tree.max_depth == tree.budget]
    return [(rule.name, proposal) for rule in fitting if rule.name != "greedy" for proposal in sorted(rule.proposals)]


def _row(rule: str, proposal: str, accepted: float, drafted: float, distance: float) -> dict:
    lossless = rule == BOUND or RULES[rule].lossless
    label = f"{rule}, {proposal.replace('_', ' ')}"
    return {
        "rule": rule,
        "proposal": proposal,
        "label": label,
        "lossless": lossless,
        "rounds": 1,
        "accepted": accepted,
        "drafted": drafted,
        "distance": distance,
    }


def _proposals(rows: list[dict], setting: dict) -> list[str]:
    here = [row["proposal"] for row in rows if all(row[name] == value for name, value in setting.items())]
    return list(dict.fromkeys(here))
