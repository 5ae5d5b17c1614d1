"""What rules are worth, exactly: every rule on languages of a few tokens, over shapes, temperatures and drafters."""

from itertools import product
from typing import Sequence

import pandas as pd
import torch

from lib.lab.tables import Table
from lib.studies.acceptance import live
from lib.trees.shapes import parse
from lib.trees.tree import Tree
from lib.verify.proof import bounds, enumeration
from lib.verify.proof.hard_languages import HARD, random_pair
from lib.verify.proof.small_languages import Logits
from lib.verify.rules import RULES

BOUND = "bound"  # stands where a rule's name does: what none can beat
EXACT = 1e-12  # a larger distance is no rounding
OWN = {  # the proposal that each lossless rule was made for
    "naive": "top_k",
    "multi_step": "iid",
    "k_seq": "iid",
    "without_replacement": "without_replacement",
    "traversal": "without_replacement",
}
Pairs = Sequence[tuple[str, str]]  # rules and proposals


def exact(
    table: Table,
    shapes: Sequence[str],
    *,
    temperatures: Sequence[float],
    agreements: Sequence[float],
    languages: int,
    seed: int,
    vocabulary: int = 3,
    pairs: Pairs | None = None,
    bounded: bool = True,
) -> pd.DataFrame:
    """The rows of the table "rules_exact" that are asked for; those that it lacks are computed and appended, language
    by language.

    A row a language, agreement, temperature, shape and (rule, proposal); all rules and proposals where no `pairs` are
    named. Languages are random, each with a drafter of each agreement (see `small_languages.Logits`); target and
    drafter are warped by the same temperature. bounded: with rows of the rule "bound", the joint transport for each
    proposal. Added to the table's columns are `rounds`, 1, and `label`, rule and proposal in words.
    """
    done, wanted = table.keys(), []
    for language, shape in product(range(languages), shapes):
        cases = list(pairs or sampled_rules(parse(shape)))
        cases += [(BOUND, proposal) for proposal in dict.fromkeys(name for _, name in cases)] if bounded else []
        rows = []
        for agreement, temperature in product(agreements, temperatures):
            setting = (vocabulary, seed, language, float(agreement), float(temperature), shape)
            wanted += [(*setting, *case) for case in cases]
            missing = [case for case in cases if (*setting, *case) not in done]
            rows += _rows(setting, missing) if missing else []
        table.extend(rows)
    keys = list(table.schema.key)
    found = table.frame().set_index(keys).loc[pd.MultiIndex.from_tuples(wanted, names=keys)].reset_index()
    return labelled(found)


def _rows(setting: tuple, cases: Pairs) -> list[dict]:
    vocabulary, seed, language, agreement, temperature, shape = setting
    about = dict(zip(("vocabulary", "seed", "language", "agreement", "temperature", "shape"), setting))
    tree = parse(shape)
    target = Logits.random(vocabulary, tree.max_depth, torch.Generator().manual_seed(seed + language))
    drafter = target.related(agreement, torch.Generator().manual_seed(seed + language + 1_000_003))
    says, drafts = target.language(temperature), drafter.language(temperature)
    rows = []
    for rule, proposal in cases:
        if rule == BOUND:
            best = bounds.best_accepted_length(says, drafts, tree, proposal)
            found = {"lossless": True, "accepted": best, "drafted": float("nan"), "distance": 0.0}
        else:
            law = enumeration.law(rule, says, drafts, tree, proposal)
            far = enumeration.distance(law, says, tree.max_depth + 1)
            found = {"accepted": law.accepted_length, "drafted": law.drafted, "distance": far}
            found["lossless"] = RULES[rule].lossless
        rows.append(about | {"rule": rule, "proposal": proposal} | found)
    return rows


def proof(table: Table, shapes: Sequence[str], *, random: int, pairs: Pairs | None = None) -> pd.DataFrame:
    """The table "rules_proof": every rule with every proposal on each shape, over `random` random pairs of languages of
    three tokens and over the hard ones of `hard_languages`. What is there already stays.
    """
    pools = {"random": [random_pair(seed) for seed in range(random)], "hard": list(HARD.values())}
    for shape, kind in product(shapes, pools):
        tree = parse(shape)
        for rule, proposal in pairs or sampled_rules(tree):
            if (rule, proposal, shape, kind) not in table.keys():
                found = [_distance(rule, proposal, tree, *pair) for pair in pools[kind]]
                about = {"rule": rule, "proposal": proposal, "shape": shape, "kind": kind, "languages": len(found)}
                table.append(**about, lossless=RULES[rule].lossless, worst=max(found), mean=sum(found) / len(found))
    return table.frame()


def _distance(rule: str, proposal: str, tree: Tree, target: enumeration.Language, drafter: enumeration.Language):
    law = enumeration.law(rule, target, drafter, tree, proposal)
    return enumeration.distance(law, target, tree.max_depth + 1)


def measured(kept: Table, grid: Sequence[live.Live], pair, asked, *, new_tokens: int, seed: int) -> pd.DataFrame:
    """The table "rules_live": each setting of the grid decoded live on all prompts (see `live.run`), if not there."""
    names = ("drafter", "rule", "shape", "temperature")
    done = {tuple(dict(zip(kept.schema.key, key))[name] for name in ("pair", *names)) for key in kept.keys()}
    for setting in grid:
        if (pair.name, *(getattr(setting, name) for name in names)) not in done:
            kept.extend(live.run(setting, pair, [], asked, [], new_tokens=new_tokens, seed=seed))
    return kept.frame()


def sampled_rules(tree: Tree) -> list[tuple[str, str]]:
    """Every rule for a tree above temperature 0, with every proposal that it is valid for."""
    fitting = [rule for rule in RULES.values() if rule.shapes == "any" or tree.max_depth == tree.budget]
    return [(rule.name, proposal) for rule in fitting if rule.name != "greedy" for proposal in sorted(rule.proposals)]


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """With `label`, such as "naive: top k" (whose style is the rule's), and `rounds`, 1: a row is one expectation."""
    return rows.assign(label=[label(*pair) for pair in zip(rows["rule"], rows["proposal"])], rounds=1)


def label(rule: str, proposal: str) -> str:
    """A rule with a proposal, as figures and tables name them."""
    return f"{rule}: {proposal.replace('_', ' ')}"


def best_rules(rows: pd.DataFrame, by: Sequence[str] = ("proposal", "lossless", "temperature")) -> pd.DataFrame:
    """Of rows of the table "rules_exact", the rule that accepts most in each setting `by`: its mean accepted length and
    distance, and by which share it leads the next one (NaN where there is none). Of equals, the simpler rule, which
    stands first in RULES. Bounds are left out.
    """
    by = list(by)
    mean = rows[rows["rule"] != BOUND].groupby([*by, "rule"], as_index=False)[["accepted", "distance"]].mean()
    mean = mean.assign(accepted=mean["accepted"].round(9), simplicity=mean["rule"].map(list(RULES).index))
    ordered = mean.sort_values(["accepted", "simplicity"], ascending=[False, True])
    ordered = ordered.drop(columns="simplicity").groupby(by)
    first, second = ordered.nth(0).set_index(by), ordered.nth(1).set_index(by)["accepted"]
    return first.assign(lead=first["accepted"] / second - 1).sort_index().reset_index()
