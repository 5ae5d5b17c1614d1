"""Measurements of rules: by enumeration of languages of a few tokens, live on real models, and a test that real models
in the loop emit the target's own distribution.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from scipy.special import xlogy
from scipy.stats import chi2, norm
from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.self_speculation import first_layers
from lib.lab import cluster
from lib.lab.tables import Table
from lib.replay import live
from lib.trees.shapes import parse
from lib.trees.tree import Tree
from lib.verify.proof import bounds, enumeration, sources
from lib.verify.proof.languages import HARD, Logits, random_pair
from lib.verify.rules import RULES
from lib.verify.warping import warp

BOUND = "bound"  # in place of a rule's name: the bound of all lossless rules
RANDOM, HARDEST = "random", "hard"  # kinds of languages
EXACT = 1e-12  # larger distances are not rounding
SETTING = ("vocabulary", "seed", "language", "agreement", "temperature", "shape")
# The lossless rules for sampling on trees, each with the proposal that it was made for.
LOSSLESS = {rule.name: rule.made_for for rule in RULES.values() if rule.lossless and rule.sampled
            and rule.shapes == "any"}
Pairs = Sequence[tuple[str, str]]  # rules and proposals

LEVEL = 0.05  # of all tests of the law together
POWER = 0.8  # with which the distance `visible` is detected
LEAST_EXPECTED = 5.0  # cells with smaller expected counts are pooled
ROWS = 64  # sequences per batch
LATE = 6  # of a target alone, the first layers draft, all but one in so many


def exact(table: Table, shapes: Sequence[str], *, temperatures: Sequence[float], agreements: Sequence[float],
          languages: int, seed: int, vocabulary: int = 3, pairs: Pairs | None = None,
          bounded: bool = True) -> pd.DataFrame:
    """The requested rows of the table "rules_exact"; missing ones are computed and appended, language by language.

    One row for each language, agreement, temperature, shape and (rule, proposal); `pairs` None: all rules and
    proposals. Languages are random, each with a drafter of each agreement (see `languages.Logits`); target and drafter
    are warped by the same temperature. bounded: adds rows of the rule "bound", the joint transport for each proposal.
    `labelled` adds its columns.
    """
    done, wanted, missing = table.keys(), [], []
    for language, shape in product(range(languages), shapes):
        cases = list(pairs or sampled_rules(parse(shape)))
        cases += [(BOUND, proposal) for proposal in dict.fromkeys(name for _, name in cases)] if bounded else []
        settings = [(vocabulary, seed, language, float(agreement), float(temperature), shape)
                    for agreement, temperature in product(agreements, temperatures)]
        wanted += [(*setting, *case) for setting in settings for case in cases]
        missing.append([(setting, own) for setting in settings
                        if (own := [case for case in cases if (*setting, *case) not in done])])
    for rows in cluster.spread(_rows_of, [each for each in missing if each]):
        table.extend(rows)
    keys = list(table.schema.key)
    return labelled(table.frame().set_index(keys).loc[pd.MultiIndex.from_tuples(wanted, names=keys)].reset_index())


def _rows_of(settings: Sequence[tuple[tuple, Pairs]]) -> list[dict]:
    return [row for setting, cases in settings for row in _rows(setting, cases)]


def _rows(setting: tuple, cases: Pairs) -> list[dict]:
    vocabulary, seed, language, agreement, temperature, shape = setting
    tree = parse(shape)
    target_logits = Logits.random(vocabulary, tree.max_depth, torch.Generator().manual_seed(seed + language))
    related = target_logits.related(agreement, torch.Generator().manual_seed(seed + language + 1_000_003))
    target, drafter = target_logits.language(temperature), related.language(temperature)
    rows = []
    for rule, proposal in cases:
        if rule == BOUND:
            best = bounds.best_accepted_length(target, drafter, tree, proposal)
            values = {"lossless": True, "accepted": best, "distance": 0.0}
        else:
            law = enumeration.law(rule, target, drafter, tree, proposal)
            values = {"lossless": RULES[rule].lossless, "accepted": law.accepted_length,
                      "distance": enumeration.distance(law, target, tree.max_depth + 1)}
        rows.append(dict(zip(SETTING, setting)) | {"rule": rule, "proposal": proposal} | values)
    return rows


def proof(table: Table, shapes: Sequence[str], *, random: int, pairs: Pairs | None = None) -> pd.DataFrame:
    """The table "rules_proof": the distance of every rule with every proposal on each shape, over `random` random pairs
    of languages of three tokens and over the hard ones of `languages.HARD`; on chains also that of the acceptances of
    `sources`, which are no rules. Only missing rows are computed.
    """
    done = table.keys()
    missing = [(rule, proposal, shape, kind) for shape, kind in product(shapes, (RANDOM, HARDEST))
               for rule, proposal in pairs or enumerated(parse(shape)) if (rule, proposal, shape, kind) not in done]
    for row in cluster.spread(_proved, missing, random):
        table.append(**row)
    return table.frame()


def _proved(case: tuple[str, str, str, str], random: int) -> dict:
    """The row of a rule, proposal, shape and kind of languages."""
    rule, proposal, shape, kind = case
    tree, languages = parse(shape), map(random_pair, range(random)) if kind == RANDOM else HARD.values()
    known = RULES.get(rule)
    distances = [enumeration.distance(enumeration.law(rule, *pair, tree, proposal), pair[0], tree.max_depth + 1)
                 if known else sources.distance(rule, *pair, tree) for pair in languages]
    return dict(rule=rule, proposal=proposal, shape=shape, kind=kind, languages=len(distances),
                lossless=known is not None and known.lossless, worst=max(distances),
                mean=sum(distances) / len(distances))


def with_draft_model(pair):
    """The pair; for a target alone, a pair whose draft model is the target's first layers, all but one in LATE.

    So many, because few layers of a model that was not trained for it rarely agree with it, and rules differ on drafts
    that are in part accepted. ValueError where the target's layers cannot draft.
    """
    if pair.draft_model is not None:
        return pair
    layers = getattr(pair.target.config, "num_hidden_layers", 0)
    exits = max(1, layers - -(-layers // LATE))
    name = f"early_exit:{exits}"
    return replace(pair, name=f"{pair.name}/{name}", draft_model=first_layers(pair.target, exits), drafter_name=name,
                   made_by=(with_draft_model, (pair,)))


def measured(table: Table, grid: Sequence[live.Live], pair, prompts, *, new_tokens: int, seed: int) -> pd.DataFrame:
    """The table "rules_live": each setting of the grid, decoded live on all prompts (see `live.run`). Only missing
    settings are decoded."""
    names = ("drafter", "rule", "shape", "temperature")
    done = {tuple(dict(zip(table.schema.key, key))[name] for name in ("pair", *names)) for key in table.keys()}
    for setting in grid:
        if (pair.name, *(getattr(setting, name) for name in names)) not in done:
            rows = live.run(setting, pair, prompts, new_tokens=new_tokens, seed=seed)
            table.extend(rows.assign(dtype=pair.dtype))
    return table.frame()


def sampled_rules(tree: Tree) -> list[tuple[str, str]]:
    """Every rule for a tree above temperature 0, with every proposal that it is valid for."""
    fitting = [rule for rule in RULES.values() if rule.shapes == "any" or tree.max_depth == tree.budget]
    return [(rule.name, proposal) for rule in fitting if rule.sampled for proposal in sorted(rule.proposals)]


def enumerated(tree: Tree) -> list[tuple[str, str]]:
    """`sampled_rules`, and on a chain the acceptances of `sources`."""
    published = (sources.RATIO, sources.AGAIN) if tree.max_depth == tree.budget else ()
    return sampled_rules(tree) + [(name, sources.PROPOSAL) for name in published]


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds `label`, such as "naive: top k" (drawn in its rule's style), and `rounds`, 1: a row is one expectation."""
    return rows.assign(label=[label(*pair) for pair in zip(rows["rule"], rows["proposal"])], rounds=1)


def label(rule: str, proposal: str = "") -> str:
    """A rule with a proposal, by default the one that it was made for, as figures and tables name them."""
    return f"{rule}: {(proposal or RULES[rule].made_for).replace('_', ' ')}"


# -------------------------------------------------------------------------------------------- a test of the loop's law


@dataclass(frozen=True)
class LawTest:
    """What is decoded for the test, whatever the rule and proposal; only `top_k` tokens, so that cells are full."""

    shape: str
    temperature: float
    top_k: int
    length: int
    samples: int
    seed: int


def law_tests(table: Table, pair, prompts: Mapping[str, Tensor], rules: Pairs, setting: LawTest) -> pd.DataFrame:
    """The table "rules_law": for each prompt and (rule, proposal), a test of the first tokens of many continuations.
    Only missing rows are computed.

    pair: as from `with_draft_model`; prompts: name -> int64[T].
    """
    for place, (name, prompt) in enumerate(prompts.items()):
        key = {"pair": pair.name, "prompt": name, "shape": setting.shape, "temperature": setting.temperature}
        missing = [case for case in rules if (*key.values(), *case) not in table.keys()]
        law = law_of(pair.target, prompt, setting.length, setting.temperature, setting.top_k) if missing else {}
        drawn = cluster.spread(_first_tokens, missing, pair, prompt, setting, setting.seed + place)
        for (rule, proposal), tokens in zip(missing, drawn):
            table.append(**key, rule=rule, proposal=proposal, top_k=setting.top_k, tokens=setting.length,
                         dtype=pair.dtype, **vars(g_test(tokens, law)))
    return table.frame()


def _first_tokens(case: tuple[str, str], pair, prompt: Tensor, setting: LawTest, seed: int) -> list[tuple[int, ...]]:
    return first_tokens(pair, prompt, *case, setting, seed)


def first_tokens(pair, prompt: Tensor, rule: str, proposal: str, setting: LawTest, seed: int) -> list[tuple[int, ...]]:
    """The first tokens of `setting.samples` continuations of a prompt int64[T], decoded live."""
    drafter = LanguageModelDrafter(
        pair.draft_model, proposal=proposal, temperature=setting.temperature)
    done = live.decode(
        pair.target, drafter, [prompt] * setting.samples, rows=ROWS, shape=setting.shape, rule=rule,
        temperature=setting.temperature, top_k=setting.top_k, max_new_tokens=setting.length, seed=seed)
    return [tuple(tokens) for tokens in done.new_tokens]


@torch.inference_mode()
def law_of(target, prompt: Tensor, length: int, temperature: float, top_k: int) -> dict[tuple[int, ...], float]:
    """The exact law of the next `length` tokens after a prompt int64[T], warped target: top_k^length cells."""
    law = {(): 1.0}
    for _ in range(length):
        texts = torch.stack([torch.cat([prompt, torch.tensor(cell, dtype=torch.long)]) for cell in law])
        logits = target(texts.to(target.device), logits_to_keep=1).logits[:, -1]
        probs = warp(logits.double(), temperature, top_k).cpu()
        law = {(*cell, token): chance * float(row[token]) for (cell, chance), row in zip(law.items(), probs)
               for token in row.nonzero()[:, 0].tolist()}
    return law


@dataclass(frozen=True)
class GTest:
    """G = 2 sum n ln(n / expected), its degrees of freedom, and the chance of a larger one under the expected law."""

    statistic: float
    degrees: int
    p_value: float
    samples: int

    def visible(self, level: float) -> float:
        """The total variation distance from which on a wrong law is detected with POWER at this level.

        A law at distance d has a divergence of at least 2 d^2 (Pinsker), so that G grows by at least 4 n d^2; G is
        taken as normal, with the mean k + c and variance 2 (k + 2 c) of the non-central chi-squared law. Most wrong
        laws are detected at smaller distances: this one holds for any.
        """
        # (k + c - critical) / sqrt(2 (k + 2 c)) = z is quadratic in the root.
        z, critical = norm.ppf(POWER), chi2.isf(level, self.degrees)
        root = 2 * z + (4 * z**2 + 4 * critical - 2 * self.degrees) ** 0.5
        return float(((root**2 / 4 - self.degrees / 2) / (4 * self.samples)) ** 0.5)


def g_test(emitted: Iterable[tuple[int, ...]], law: Mapping[tuple[int, ...], float]) -> GTest:
    """Tests emitted tokens against their law. A token sequence that the law excludes gives p = 0."""
    counts = Counter(emitted)
    total = sum(counts.values())
    expected = {cell: total * chance for cell, chance in law.items() if chance > 0}
    excluded = sum(count for cell, count in counts.items() if cell not in expected)
    common = {cell: value for cell, value in expected.items() if value >= LEAST_EXPECTED}
    cells = [(counts[cell], value) for cell, value in common.items()]
    rest = sum(expected.values()) - sum(common.values())
    if rest > 1e-9 * total:
        cells.append((total - excluded - sum(counts[cell] for cell in common), rest))
    seen, values = np.array(cells, dtype=float).T
    statistic, degrees = 2 * float(xlogy(seen, seen / values).sum()), len(cells) - 1
    if excluded:
        return GTest(float("inf"), degrees, 0.0, total)
    return GTest(statistic, degrees, float(chi2.sf(statistic, degrees)) if degrees else 1.0, total)


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table "rules_law" as tests that hold together at LEVEL (Holm 1979).

    Added columns: `adjusted`, the adjusted p-value; `passes`, whether it exceeds the level; `visible`, the distance
    that is detected with POWER even by a test at LEVEL / tests, the strictest that Holm's procedure demands.
    """
    order = rows["p_value"].rank(method="first").astype(int)
    steps = (rows["p_value"] * (len(rows) + 1 - order)).clip(upper=1)
    adjusted = steps[order.sort_values().index].cummax().reindex(rows.index)
    tests = [GTest(*values) for values in rows[["statistic", "degrees", "p_value", "samples"]].itertuples(index=False)]
    visible = [test.visible(LEVEL / len(rows)) for test in tests]
    return rows.assign(adjusted=adjusted, passes=adjusted > LEVEL, visible=visible)
