"""Is what a loop of real models says distributed as the target's own sampling? A G-test against the exact law."""

from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist
from typing import Iterable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from lib.drafters.language_model import LanguageModelDrafter
from lib.lab.tables import Table
from lib.studies.acceptance import live
from lib.verify.warping import warp

LEVEL = 0.05  # of all tests together
LEAST_EXPECTED = 5.0  # cells of fewer expected counts are thrown together
ROWS = 64  # sequences that are decoded side by side


@dataclass(frozen=True)
class GTest:
    """G = 2 sum n ln(n / expected), its degrees of freedom, and the chance of a larger one under the expected law."""

    statistic: float
    degrees: int
    p_value: float
    samples: int

    def visible(self, level: float, power: float = 0.8) -> float:
        """The total variation distance from which on a wrong law is found with this power at this level.

        A law that is further than d has a divergence of at least 2 d^2 (Pinsker), so that G grows by 4 n d^2 or more;
        G is taken as normal with the mean and variance of the non-central chi-squared law. Most wrong laws are seen
        sooner: this is what no wrong law can hide beyond.
        """
        normal = NormalDist()
        critical = _critical(self.degrees, level)
        low, high = 0.0, 10.0 * critical + 100.0
        for _ in range(80):
            middle = (low + high) / 2
            spread = (2 * (self.degrees + 2 * middle)) ** 0.5
            found = 1 - normal.cdf((critical - self.degrees - middle) / spread)
            low, high = (middle, high) if found < power else (low, middle)
        return (high / (4 * self.samples)) ** 0.5


def g_test(said: Iterable[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> GTest:
    """Tests what was said against a law. Anything said that the law excludes gives p = 0."""
    counts = Counter(said)
    total = sum(counts.values())
    excluded = sum(count for cell, count in counts.items() if law.get(cell, 0.0) <= 0)
    expected = {cell: total * chance for cell, chance in law.items() if chance > 0}
    common = [cell for cell, value in expected.items() if value >= LEAST_EXPECTED]
    cells = [(counts[cell], expected[cell]) for cell in common]
    rest = sum(expected.values()) - sum(value for _, value in cells)
    if rest > 1e-9 * total:
        cells.append((sum(count for cell, count in counts.items() if cell not in set(common)) - excluded, rest))
    statistic = 2 * sum(
        count * torch.log(torch.tensor(count / value, dtype=torch.float64)).item() for count, value in cells if count
    )
    degrees = len(cells) - 1
    p_value = 0.0 if excluded else _upper_tail(statistic, degrees)
    return GTest(float("inf") if excluded else statistic, degrees, p_value, total)


@torch.inference_mode()
def law_of(target, prompt: Tensor, length: int, temperature: float, top_k: int) -> dict[tuple[int, ...], float]:
    """The exact law of the next `length` tokens behind a prompt int64[T], warped target: top_k^length cells."""
    law = {(): 1.0}
    for _ in range(length):
        texts = torch.stack([torch.cat([prompt, torch.tensor(cell, dtype=torch.long)]) for cell in law])
        logits = target(texts.to(target.device), logits_to_keep=1).logits[:, -1]
        probs = warp(logits.double(), temperature, top_k).cpu()
        law = {
            (*cell, token): chance * float(row[token])
            for (cell, chance), row in zip(law.items(), probs)
            for token in row.nonzero()[:, 0].tolist()
        }
    return law


def _upper_tail(statistic: float, degrees: int) -> float:
    """The chance that a chi-squared number exceeds `statistic`."""
    if degrees < 1:
        return 1.0
    half = torch.tensor([degrees / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()


def _critical(degrees: int, level: float) -> float:
    low, high = 0.0, 10.0 * degrees + 200.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _upper_tail(middle, degrees) > level else (low, middle)
    return high


@dataclass(frozen=True)
class Setting:
    """What is decoded for the test, but for rule and proposal: cut to `top_k` tokens, so that cells are full."""

    shape: str
    temperature: float
    top_k: int
    length: int
    samples: int
    seed: int


def table(
    kept: Table, pair, prompts: Mapping[str, Tensor], rules: Sequence[tuple[str, str]], setting: Setting
) -> pd.DataFrame:
    """The table "rules_law": a row a prompt and (rule, proposal), the loop's first tokens, many times over, against the
    target's law. Rows that are there already are not made again.

    pair: as from `models.load_pair`; prompts: name -> int64[T].
    """
    for place, (name, prompt) in enumerate(prompts.items()):
        about = {"pair": pair.name, "prompt": name, "shape": setting.shape, "temperature": setting.temperature}
        missing = [case for case in rules if (*about.values(), *case) not in kept.keys()]
        law = law_of(pair.target, prompt, setting.length, setting.temperature, setting.top_k) if missing else {}
        for rule, proposal in missing:
            test = g_test(said(pair, prompt, rule, proposal, setting, setting.seed + place), law)
            kept.append(**about, rule=rule, proposal=proposal, top_k=setting.top_k, tokens=setting.length, **vars(test))
    return kept.frame()


def said(pair, prompt: Tensor, rule: str, proposal: str, setting: Setting, seed: int) -> list[tuple[int, ...]]:
    """The first tokens of `setting.samples` continuations of a prompt int64[T] by the loop."""
    drafter = LanguageModelDrafter(
        pair.draft_model, proposal=proposal, temperature=setting.temperature, vocabulary=pair.vocabulary
    )
    done = live.decode(
        pair.target,
        drafter,
        [prompt] * setting.samples,
        rows=ROWS,
        shape=setting.shape,
        rule=rule,
        temperature=setting.temperature,
        top_k=setting.top_k,
        max_new_tokens=setting.length,
        generator=torch.Generator().manual_seed(seed),
    )
    return [tuple(tokens) for tokens in done.new_tokens]


def judged(rows: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """The rows of the table "rules_law" as tests that hold together at `level` (Holm 1979): `adjusted` is each p times
    the number of p not smaller than it, in order; `passes`, whether that exceeds the level; `visible`, the distance
    that is found with power 0.8 even where a test must stand alone against all others, at level / tests.
    """
    order = rows["p_value"].rank(method="first").astype(int)
    steps = (rows["p_value"] * (len(rows) + 1 - order)).clip(upper=1)
    adjusted = steps[order.sort_values().index].cummax().reindex(rows.index)
    tests = [GTest(*values) for values in rows[["statistic", "degrees", "p_value", "samples"]].itertuples(index=False)]
    visible = [test.visible(level / len(rows)) for test in tests]
    return rows.assign(adjusted=adjusted, passes=adjusted > level, visible=visible)
