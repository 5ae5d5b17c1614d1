"""Measurements of verification rules: the tables of notebook 04.

Rules are enumerated over languages of a few tokens ("rules_exact", "rules_proof"), decode live on real models ("live"),
and the first tokens of the loop are tested against the target's own distribution ("rules_law").
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from scipy.stats import chi2, norm, power_divergence
from torch import Tensor

from lib.decoding.loop import generate, in_batches
from lib.drafters.language_model import LanguageModelDrafter
from lib.forward.load import load_pair, load_pairs
from lib.lab import cluster
from lib.lab.chapter import Store
from lib.lab.tables import Table
from lib.models import prompts as prompt_files
from lib.models.prompts import PromptSet
from lib.study import live
from lib.study.bench import arranged
from lib.study.settings import Rules
from lib.trees import named
from lib.trees.tree import Tree
from lib.verify import proof
from lib.verify.rules import RULES, verify
from lib.verify.warping import warp

# The lossless rules for sampling on trees, each with the proposal that it was made for.
LOSSLESS = {rule.name: rule.made_for for rule in RULES.values()
            if rule.lossless and rule.sampled and rule.shapes == "any"}
Cases = Sequence[tuple[str, str]]  # rules and proposals
LEVEL = 0.05  # of all tests of the law together
POWER = 0.8  # with which the distance `visible` is detected
LEAST_EXPECTED = 5.0  # cells with smaller expected counts are pooled
ROWS = 64  # sequences per batch
TESTED_TOKENS = 3  # first tokens of a continuation, whose law is tested
CONTEXT = 8  # last tokens of a prompt that the test begins with


def measure(store: Store, settings: Rules) -> None:
    """The tables "rules_proof", "rules_exact", "live" and "rules_law".

    The last two need pairs with a draft model, one for each target. The law is tested on the first of these in float32,
    since in bfloat16 logits at the cut of top-k are often equal, and another order of additions keeps another token.
    """
    proved = [((shape, kind), sampled_rules(named(shape)))
              for shape, kind in product(settings.proof_shapes, ("random", "hard"))]
    fill(store.open("rules_proof"), proved, proof_rows, settings.proof_languages)
    cases = cases_of(settings.exact_shapes, [f"chain:{length}" for length in settings.chain_lengths],
                     settings.agreement, settings.agreements)
    enumerated = [((language, temperature, *setting), pairs) for language, temperature, (setting, pairs)
                  in product(range(settings.languages), settings.temperatures, cases.items())]
    fill(store.open("rules_exact"), enumerated, exact_rows, settings.vocabulary, settings.seed)
    firsts: dict[str, tuple] = {}  # the first pair with a draft model of each target
    for name, pair in zip(settings.pairs, load_pairs(settings.pairs, dtype=settings.dtype, device=settings.device)):
        if pair.draft_model is not None:
            firsts.setdefault(pair.target_name, (name, pair))
    for number, (name, pair) in enumerate(firsts.values()):
        limit = pair.room(settings.live_tokens + max(named(shape).max_depth for shape in settings.live_shapes))
        prompts, _ = arranged(prompt_files.load(settings.prompts, pair.tokenizer, limit=limit), 0,
                              settings.judge_prompts, np.random.default_rng(settings.seed))
        decoded = [("model", rule, shape, temperature) for shape, temperature, rule
                   in product(settings.live_shapes, settings.live_temperatures, LOSSLESS)]
        live.decode(store, [pair], prompts, decoded, {}, settings.live_tokens, settings.seed)
        if not number:
            law_tests(store, load_pair(name, dtype="float32", device=settings.device), prompts, settings)


# ------------------------------------------------------------------------------------------------------- enumeration


def cases_of(shapes: Sequence[str], chains: Sequence[str], agreement: float,
             agreements: Sequence[float]) -> dict[tuple[float, str], Cases]:
    """What is enumerated for each language and temperature, by agreement and shape: every rule with every proposal; and
    with each of `agreements` multi_step beside without_replacement on trees, and block on chains.
    """
    cases = {(agreement, shape): sampled_rules(named(shape)) for shape in shapes}
    compared = [*product([shape for shape in shapes if not shape.startswith("chain")], ["without_replacement"]),
                *product(chains, ["block"])]
    for (shape, rule), other in product(compared, agreements):
        cases.setdefault((other, shape), [(name, RULES[name].made_for) for name in ("multi_step", rule)])
    return cases


def sampled_rules(tree: Tree) -> list[tuple[str, str]]:
    """Every rule for a tree above temperature 0, with every proposal that it is valid for."""
    fitting = [rule for rule in RULES.values() if rule.shapes == "any" or tree.is_path]
    return [(rule.name, proposal) for rule in fitting if rule.sampled for proposal in sorted(rule.proposals)]


def enumerate_rounds(cases: Cases, target: proof.Language, drafter: proof.Language,
                     tree: Tree) -> Iterator[tuple[str, str, float, float]]:
    """Each rule and proposal with the accepted length of a round and its distance from the target's law."""
    drafts = {proposal: [*proof.drafts(drafter, tree, proposal)] for proposal in {proposal for _, proposal in cases}}
    for rule, proposal in cases:
        law = proof.law_of(partial(verify, rule), target, drafts[proposal])
        yield rule, proposal, law.accepted_length, proof.distance(law, target, tree.max_depth + 1)


def fill(table: Table, pieces: Iterable[tuple[tuple, Cases]], function: Callable, *arguments) -> None:
    """Adds the rows of function((setting, cases), *arguments) for settings with which no key of the table begins."""
    done = {key[:-2] for key in table.keys()}
    missing = [(setting, cases) for setting, cases in pieces if setting not in done]
    for rows in cluster.spread(function, missing, *arguments):
        table.extend(rows)


def exact_rows(piece: tuple[tuple, Cases], vocabulary: int, seed: int) -> list[dict]:
    """Rows of the table "rules_exact"."""
    (language, temperature, agreement, shape), cases = piece
    tree = named(shape)
    target_logits = proof.Logits.random(vocabulary, tree.max_depth, torch.Generator().manual_seed(seed + language))
    related = target_logits.related(agreement, torch.Generator().manual_seed(seed + language + 1_000_003))
    languages = target_logits.language(temperature), related.language(temperature)
    return [dict(language=language, temperature=temperature, agreement=agreement, shape=shape, rule=rule,
                 proposal=proposal, accepted=accepted, distance=distance)
            for rule, proposal, accepted, distance in enumerate_rounds(cases, *languages, tree)]


def proof_rows(piece: tuple[tuple[str, str], Cases], random: int) -> list[dict]:
    """Rows of the table "rules_proof": largest distances over so many random pairs of languages, or over HARD."""
    (shape, kind), cases = piece
    languages = [*map(proof.random_pair, range(random))] if kind == "random" else proof.HARD.values()
    distances = defaultdict(list)
    for pair in languages:
        for *case, _, distance in enumerate_rounds(cases, *pair, named(shape)):
            distances[tuple(case)].append(distance)
    return [dict(shape=shape, kind=kind, rule=rule, proposal=proposal, languages=len(values), worst=max(values))
            for (rule, proposal), values in distances.items()]


# -------------------------------------------------------------------------------------------------------- real models


def law_tests(store: Store, pair, prompts: PromptSet, settings: Rules) -> None:
    """The table "rules_law": for the first prompts' ends and each lossless rule a test of the first tokens of many
    continuations, of the `test_top_k` best tokens alone, so that cells are full. The column `visible` holds for a test
    at LEVEL / tests, the strictest that Holm's procedure demands of these tests together.
    """
    table, tested = store.open("rules_law"), [*zip(prompts.names, prompts.ids)][: settings.tested_prompts]
    level = LEVEL / (len(tested) * len(LOSSLESS))
    for number, (name, ids) in enumerate(tested):
        prompt, missing = ids[-CONTEXT:], [rule for rule in LOSSLESS if (name, rule) not in table.keys()]
        law = law_of(pair.target, prompt, TESTED_TOKENS, settings.test_temperature, settings.test_top_k)
        drawn = cluster.spread(first_tokens, missing, pair, prompt, settings, settings.seed + number)
        for rule, tokens in zip(missing, drawn):
            test = g_test(tokens, law)
            smallest = visible(test["degrees"], settings.samples, level)
            table.extend([dict(prompt=name, rule=rule, **test, visible=smallest)])


def first_tokens(rule: str, pair, prompt: Tensor, settings: Rules, seed: int) -> list[tuple[int, ...]]:
    """The first tokens of continuations of a prompt int64[T], with the proposal that the rule was made for."""
    drafter, written = LanguageModelDrafter(
        pair.draft_model, proposal=LOSSLESS[rule], temperature=settings.test_temperature), []
    for number, (tokens, mask) in enumerate(in_batches([prompt] * settings.samples, ROWS)):
        done = generate(pair.target, drafter, tokens, attention_mask=mask, shape=settings.live_shapes[0], rule=rule,
                        temperature=settings.test_temperature, top_k=settings.test_top_k,
                        max_new_tokens=TESTED_TOKENS, generator=cluster.seeded(seed, number))
        written += map(tuple, done.new_tokens)
    return written


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


def g_test(emitted: Iterable[tuple[int, ...]], law: Mapping[tuple[int, ...], float]) -> dict:
    """A G-test of emitted tokens against their law: `statistic` G, `degrees` of freedom, and `p_value`, the chance of a
    larger G under the law; 0 where the law excludes a token sequence.
    """
    counts = Counter(emitted)
    observed = np.array([counts[cell] for cell in law])
    expected = counts.total() * np.array([*law.values()])
    if (is_rare := expected < LEAST_EXPECTED).any():
        observed, expected = (np.append(cells[~is_rare], cells[is_rare].sum()) for cells in (observed, expected))
    test = float("inf"), 0.0
    if observed.sum() == counts.total():
        test = power_divergence(observed, expected, lambda_="log-likelihood")
    return dict(statistic=float(test[0]), degrees=len(expected) - 1, p_value=float(test[1]))


def visible(degrees: int, samples: int, level: float) -> float:
    """The total variation distance from which on a wrong law is detected with POWER by a G-test at this level.

    A law at distance d has a divergence of at least 2 d^2 (Pinsker), so that G grows by c >= 4 n d^2; G is taken as
    normal, with the mean k + c and variance 2 (k + 2 c) of the non-central chi-squared law.
    """
    # (k + c - critical) / sqrt(2 (k + 2 c)) = z is quadratic in the root.
    z, critical = norm.ppf(POWER), chi2.isf(level, degrees)
    root = 2 * z + (4 * z**2 + 4 * critical - 2 * degrees) ** 0.5
    return float(((root**2 / 4 - degrees / 2) / (4 * samples)) ** 0.5)
