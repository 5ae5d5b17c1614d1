"""Measurements of verification rules: the tables of notebook 04.

Rules are enumerated over languages of a few tokens (`exact_rows`, `proof_row`), decode live on real models, and the
first tokens of the loop are tested against the target's own distribution (`g_test`).
"""

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Iterable, Mapping, Sequence

import numpy as np
import torch
from scipy.special import xlogy
from scipy.stats import chi2, norm
from torch import Tensor

from lib.decoding.loop import generate, in_batches
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import cluster
from lib.lab.chapter import Store
from lib.forward.load import load_pair, load_pairs
from lib.models.prompts import load as load_prompts
from lib.replay import live
from lib.replay.recording import room
from lib.trees import named
from lib.trees.tree import Tree
from lib.verify import proof as enumeration
from lib.verify.proof import HARD, Logits, random_pair
from lib.verify.rules import RULES
from lib.verify.warping import warp

RANDOM, HARDEST = "random", "hard"  # kinds of languages
# The lossless rules for sampling on trees, each with the proposal that it was made for.
LOSSLESS = {rule.name: rule.made_for for rule in RULES.values() if rule.lossless and rule.sampled
            and rule.shapes == "any"}
Pairs = Sequence[tuple[str, str]]  # rules and proposals
# vocabulary, seed, number of the language, agreement, temperature, shape: first columns of the table "rules_exact"
Setting = tuple[int, int, int, float, float, str]

LEVEL = 0.05  # of all tests of the law together
POWER = 0.8  # with which the distance `visible` is detected
LEAST_EXPECTED = 5.0  # cells with smaller expected counts are pooled
ROWS = 64  # sequences per batch
TESTED_TOKENS = 3  # first tokens of a continuation, whose law is tested
CONTEXT = 8  # last tokens of a prompt that the test begins with


def measure(store: Store, *, device: str, vocabulary: int, languages: int, proof_languages: int,
            proof_shapes: Sequence[str], exact_shapes: Sequence[str], temperatures: Sequence[float], agreement: float,
            agreements: Sequence[float], chain_lengths: Sequence[int], pairs: Sequence[str], prompts: str,
            judge_prompts: int, live_shapes: Sequence[str], live_temperatures: Sequence[float], live_tokens: int,
            samples: int, tested_prompts: int, test_temperature: float, test_top_k: int, dtype: str,
            seed: int) -> None:
    """The tables "rules_proof", "rules_exact", "rules_live" and "rules_law"; only missing rows are computed.

    Languages are random, each with a drafter of each agreement. The last two tables need pairs with a draft model. The
    law is tested on the first of these in float32, since in bfloat16 logits at the cut of top-k are often equal, and
    another order of additions keeps another token.
    """
    proof(store, proof_shapes, proof_languages)
    main = dict(vocabulary=vocabulary, seed=seed, languages=languages, temperatures=temperatures)
    lossy = [(rule.name, "without_replacement") for rule in RULES.values() if not rule.lossless]
    made_for = [*LOSSLESS.items(), ("naive", "iid")]
    wanted = wanted_rows(exact_shapes, made_for, agreements=[agreement], **main)
    wanted |= wanted_rows([exact_shapes[0], exact_shapes[-1]], lossy, agreements=[agreement], **main)
    wanted |= wanted_rows(exact_shapes[-1:], sampled_rules(named(exact_shapes[-1])), agreements=[agreement], **main)
    wanted |= wanted_rows([shape for shape in exact_shapes if not shape.startswith("chain")],
                          [(rule, LOSSLESS[rule]) for rule in ("without_replacement", "multi_step")],
                          agreements=agreements, **main)
    wanted |= wanted_rows([f"chain:{length}" for length in chain_lengths], [("multi_step", "iid"), ("block", "iid")],
                          agreements=agreements, **main)
    exact(store, wanted)
    loaded = {name: pair for name, pair in zip(pairs, load_pairs(pairs, dtype=dtype, device=device), strict=True)
              if pair.draft_model is not None}
    if not loaded:
        return
    texts = []
    for pair in loaded.values():
        limit = room([pair], new_tokens=live_tokens, live_tokens=live_tokens, live_shapes=live_shapes)
        texts.append(load_prompts(prompts, pair.tokenizer, limit=limit, first=judge_prompts))
        for shape, temperature, (rule, proposal) in product(live_shapes, live_temperatures, LOSSLESS.items()):
            decode(store, live.Live(proposal, rule, shape, temperature), pair, texts[-1], live_tokens, seed)
    setting = LawTest(live_shapes[0], test_temperature, test_top_k, TESTED_TOKENS, samples, seed)
    starts = {name: ids[-CONTEXT:] for name, ids in list(zip(texts[0].names, texts[0].ids))[:tested_prompts]}
    tested = load_pair(next(iter(loaded)), dtype="float32", device=device)
    law_tests(store, tested, starts, list(LOSSLESS.items()), setting)


def wanted_rows(shapes: Sequence[str], cases: Pairs, *, vocabulary: int, seed: int, languages: int,
                agreements: Sequence[float], temperatures: Sequence[float]) -> dict[tuple, None]:
    """Keys of the table "rules_exact" in their order: each case on each shape, language, agreement and temperature."""
    return dict.fromkeys((vocabulary, seed, language, float(agreement), float(temperature), shape, *case)
                         for language, shape, agreement, temperature, case
                         in product(range(languages), shapes, agreements, temperatures, cases))


def exact(store: Store, wanted: Iterable[tuple]) -> None:
    """The rows of the table "rules_exact" with these keys, language by language and shape by shape."""
    table = store.open("rules_exact")
    done, pieces = table.keys(), {}
    for *setting, rule, proposal in wanted:
        if (*setting, rule, proposal) not in done:
            cases = pieces.setdefault((setting[2], setting[5]), {}).setdefault(tuple(setting), [])
            cases.append((rule, proposal))
    for rows in cluster.spread(exact_rows, pieces.values()):
        table.extend(rows)


def exact_rows(cases_of: Mapping[Setting, Pairs]) -> list[dict]:
    """Rows of the table "rules_exact": (rule, proposal) pairs of each setting."""
    rows = []
    for setting, cases in cases_of.items():
        vocabulary, seed, language, agreement, temperature, shape = setting
        tree = named(shape)
        target_logits = Logits.random(vocabulary, tree.max_depth, torch.Generator().manual_seed(seed + language))
        related = target_logits.related(agreement, torch.Generator().manual_seed(seed + language + 1_000_003))
        target, drafter = target_logits.language(temperature), related.language(temperature)
        about = dict(vocabulary=vocabulary, seed=seed, language=language, agreement=agreement, temperature=temperature,
                     shape=shape)
        for rule, proposal in cases:
            law = enumeration.law(rule, target, drafter, tree, proposal)
            rows.append({**about, "rule": rule, "proposal": proposal, "lossless": RULES[rule].lossless,
                         "accepted": law.accepted_length,
                         "distance": enumeration.distance(law, target, tree.max_depth + 1)})
    return rows


def proof(store: Store, shapes: Sequence[str], random: int) -> None:
    """The table "rules_proof": the distance of every rule with every proposal on each shape, over `random` random pairs
    of languages of three tokens and over the hard ones of `verify.proof.HARD`.
    """
    table = store.open("rules_proof")
    done, missing = table.keys(), []
    for shape, kind in product(shapes, (RANDOM, HARDEST)):
        missing += [(*case, shape, kind) for case in sampled_rules(named(shape)) if (*case, shape, kind) not in done]
    for row in cluster.spread(proof_row, missing, random):
        table.append(**row)


def proof_row(case: tuple[str, str, str, str], random: int) -> dict:
    """The row of a rule, proposal, shape and kind of languages."""
    rule, proposal, shape, kind = case
    tree, languages = named(shape), map(random_pair, range(random)) if kind == RANDOM else HARD.values()
    distances = [enumeration.distance(enumeration.law(rule, *pair, tree, proposal), pair[0], tree.max_depth + 1)
                 for pair in languages]
    return dict(rule=rule, proposal=proposal, shape=shape, kind=kind, languages=len(distances),
                lossless=RULES[rule].lossless, worst=max(distances), mean=sum(distances) / len(distances))


def sampled_rules(tree: Tree) -> list[tuple[str, str]]:
    """Every rule for a tree above temperature 0, with every proposal that it is valid for."""
    fitting = [rule for rule in RULES.values() if rule.shapes == "any" or tree.is_path]
    return [(rule.name, proposal) for rule in fitting if rule.sampled for proposal in sorted(rule.proposals)]


def decode(store: Store, setting: live.Live, pair, prompts, new_tokens: int, seed: int) -> None:
    """The rows of the table "rules_live" of one setting, decoded live on all prompts (see `live.run`), if missing."""
    table = store.open("rules_live")
    names = ("pair", "drafter", "rule", "shape", "temperature")
    done = {tuple(dict(zip(table.schema.key, key))[name] for name in names) for key in table.keys()}
    if (pair.name, setting.drafter, setting.rule, setting.shape, setting.temperature) not in done:
        rows = live.run(setting, pair, prompts, new_tokens=new_tokens, seed=seed)
        table.extend(rows.assign(dtype=pair.dtype))


@dataclass(frozen=True)
class LawTest:
    """What is decoded for the test, whatever the rule and proposal; only `top_k` tokens, so that cells are full."""

    shape: str
    temperature: float
    top_k: int
    length: int
    samples: int
    seed: int


def law_tests(store: Store, pair, prompts: Mapping[str, Tensor], rules: Pairs, setting: LawTest) -> None:
    """The table "rules_law": for each prompt and (rule, proposal), a test of the first tokens of many continuations.

    pair: with a draft model; prompts: name -> int64[T]. The column `visible` holds for a test at LEVEL / tests, the
    strictest that Holm's procedure demands of these tests together.
    """
    table, level = store.open("rules_law"), LEVEL / max(1, len(prompts) * len(rules))
    for place, (name, prompt) in enumerate(prompts.items()):
        key = {"pair": pair.name, "prompt": name, "shape": setting.shape, "temperature": setting.temperature}
        missing = [case for case in rules if (*key.values(), *case) not in table.keys()]
        law = law_of(pair.target, prompt, setting.length, setting.temperature, setting.top_k) if missing else {}
        drawn = cluster.spread(first_tokens, missing, pair, prompt, setting, setting.seed + place)
        for (rule, proposal), tokens in zip(missing, drawn):
            test = g_test(tokens, law)
            table.append(**key, rule=rule, proposal=proposal, top_k=setting.top_k, tokens=setting.length,
                         dtype=pair.dtype, **test, visible=visible(test["degrees"], test["samples"], level))


def first_tokens(case: tuple[str, str], pair, prompt: Tensor, setting: LawTest, seed: int) -> list[tuple[int, ...]]:
    """The first tokens of `setting.samples` continuations of a prompt int64[T]; case: rule and proposal."""
    rule, proposal = case
    drafter = LanguageModelDrafter(pair.draft_model, proposal=proposal, temperature=setting.temperature)
    written = []
    for number, (tokens, mask) in enumerate(in_batches([prompt] * setting.samples, ROWS)):
        done = generate(
            pair.target, drafter, tokens, attention_mask=mask, shape=setting.shape, rule=rule,
            temperature=setting.temperature, top_k=setting.top_k, max_new_tokens=setting.length,
            generator=cluster.seeded(seed, number * ROWS))
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
    """Tests emitted tokens against their law. A token sequence that the law excludes gives p = 0.

    Returns `statistic`, G = 2 sum n ln(n / expected); `degrees` of freedom; `p_value`, the chance of a larger G under
    the law; and `samples`.
    """
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
    p_value = float(chi2.sf(statistic, degrees)) if degrees else 1.0
    if excluded:
        statistic, p_value = float("inf"), 0.0
    return dict(statistic=statistic, degrees=degrees, p_value=p_value, samples=total)


def visible(degrees: int, samples: int, level: float) -> float:
    """The total variation distance from which on a wrong law is detected with POWER by a G-test at this level.

    A law at distance d has a divergence of at least 2 d^2 (Pinsker), so that G grows by at least 4 n d^2; G is taken as
    normal, with the mean k + c and variance 2 (k + 2 c) of the non-central chi-squared law. Most wrong laws are
    detected at smaller distances: this one holds for any.
    """
    # (k + c - critical) / sqrt(2 (k + 2 c)) = z is quadratic in the root.
    z, critical = norm.ppf(POWER), chi2.isf(level, degrees)
    root = 2 * z + (4 * z**2 + 4 * critical - 2 * degrees) ** 0.5
    return float(((root**2 / 4 - degrees / 2) / (4 * samples)) ** 0.5)
