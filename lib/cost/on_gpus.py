"""Where a tree is faster than the best chain on a GPU, by the target's size, batch and budget, for acceptance by depth
and rank.

The cost of a check is measured where a GPU's plain steps take the time of reading the weights, and computed otherwise:
of two parts in turn, each the longer of its reads and its products. These are the weights, multiplied with all rows,
and attention, which reads the keys and values of the committed text. Computed costs have no launches, no caches and no
communication between GPUs. Accepted lengths are those of the rank model (`shapes.expected_accepted`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lib.cost import roofline
from lib.cost.by_depth_and_rank import Rates
from lib.cost.roofline import COMPUTED, MEASURED
from lib.cost.round_cost import FREE, RULER, CostTable, Curve, RoundCost
from lib.lab import processor, provenance, tables
from lib.models import registry
from lib.models.load import config_of
from lib.models.registry import RANDOM, SIZES
from lib.trees import shapes
from lib.trees.tree import Tree

GPU = "H100, bfloat16"  # of `roofline.HARDWARE`
TARGETS = ("smollm2-135m", "smollm2-1.7b", "llama-3-8b", "llama-3-70b")
BATCHES = (1, 4, 16, 64)
BUDGETS = (1, 2, 4, 8, 16, 32, 64, 128)
LEVEL = 0.05  # plain rounds that a level of drafting takes: a head like EAGLE-3's for 8B, by the bytes that it reads
LEVELS = (0.0, LEVEL, 0.2)  # of text, or heads that draft all levels at once; such a head; a small model
PREFIX = 512  # committed tokens per row
PAYS = 1.02  # times the best chain: the least gain that counts
RESULTS = provenance.HOME / "data" / "results"
Cell = tuple[str, str, str, int]  # hardware, how its costs are known, target, batch


def sizes(target: str) -> tuple[int, int, int]:
    """Of a size the weights that a step multiplies, the keys and values of a token, and the operations of attention per
    row and committed token.
    """
    config = config_of(registry.source(RANDOM + target.removeprefix(RANDOM)))
    hidden, depth = config.hidden_size, config.num_hidden_layers
    kept = 2 * config.num_key_value_heads * (hidden // config.num_attention_heads)
    weights = depth * hidden * (2 * hidden + kept + 3 * config.intermediate_size) + config.vocab_size * hidden
    return weights, depth * kept, 4 * depth * hidden


def computed(target: str, batch: int) -> RoundCost:
    """The cost of rounds of a size on GPU, without drafting; of checks of up to the largest of BUDGETS."""
    hardware, (weights, kept, scores) = roofline.HARDWARE[GPU], sizes(target)
    nodes = np.arange(BUDGETS[-1] + 1.0)
    rows, read = batch * (1 + nodes), hardware.weight_bytes / hardware.bandwidth  # read: seconds per number
    seconds = (np.maximum(weights * read, 2 * weights * rows / hardware.rate)
               + np.maximum(batch * PREFIX * kept * read, PREFIX * scores * rows / hardware.rate))
    return RoundCost(seconds[0], 0.0, FREE, Curve(nodes, seconds))


def all_costs(runs: Iterable[Path] = ()) -> tuple[dict[Cell, RoundCost], pd.DataFrame]:
    """Costs of rounds without drafting, computed for TARGETS and BATCHES, and measured on GPUs in these runs and the
    committed ones. Beside them the measured ones that are left out, as launch-bound or of unknown bandwidth or size:
    hardware, target, batch, and how many times a plain step would read the weights.
    """
    prices = {(GPU, COMPUTED, target, batch): computed(target, batch) for target in TARGETS for batch in BATCHES}
    bound = []
    for run in [*sorted(RESULTS.iterdir()), *runs]:
        facts = provenance.read(run).get("machine", {}) if (run / "run.json").exists() else {}
        rows = tables.read(run, "costs") if "gpu" in facts and tables.exists(run, "costs") else pd.DataFrame()
        for dtype, own in rows[rows["drafter"] == RULER].groupby("dtype") if len(rows) else ():
            for (target, _, batch), price in CostTable(own).cells.items():
                known = target.removeprefix(RANDOM).partition("@")[0] in {size.name for size in SIZES.iterdir()}
                reads = roofline.reads(facts["gpu"], dtype, sizes(target)[0] if known else np.nan, price.plain)
                if reads <= roofline.LAUNCH_BOUND:
                    prices[processor.title(facts), MEASURED, target, batch] = replace(price, once=0.0, level=FREE)
                else:
                    bound.append(dict(hardware=processor.title(facts), target=target, batch=batch, reads=reads))
    return prices, pd.DataFrame(bound, columns=["hardware", "target", "batch", "reads"])


def over_chains(rates: Rates, prices: Mapping[Cell, RoundCost], *, budgets: Sequence[int] = BUDGETS,
                levels: Sequence[float] = LEVELS) -> pd.DataFrame:
    """For each cost of rounds, cost of a level and budget the predicted speed of the fastest tree of so many nodes over
    that of the fastest chain of any length; a chain counts as a tree. The interval is that of acceptance, for the tree
    and chain of the estimate. levels: plain rounds that a level of drafting takes. A cell's budgets end where its
    checks were timed.
    """
    chains = [shapes.chain(length) for length in range(1, rates.tables.shape[1] + 1)]
    trees = {budget: candidates(rates.tables[0], budget) for budget in budgets}
    tokens = {id(tree): 1 + accepted(tree, rates.tables) for tree in sum(trees.values(), chains)}
    rows = []
    for ((hardware, source, target, batch), price), level in ((item, one) for item in prices.items() for one in levels):
        price, timed = replace(price, level=Curve(np.ones(1), np.array([level * price.plain]))), price.check.at[-1]
        speeds = {id(tree): tokens[id(tree)] * price.plain / (price.draft(tree) + price.check(tree.budget))
                  for tree in sum(trees.values(), chains) if tree.budget <= timed}
        chain = max(chains, key=lambda tree: speeds.get(id(tree), [0])[0])
        for budget in (budget for budget in budgets if budget <= timed and trees[budget]):
            tree = max(trees[budget], key=lambda tree: speeds[id(tree)][0])
            over = speeds[id(tree)] / speeds[id(chain)]
            low, high = np.quantile(over[1:], [0.025, 0.975]) if len(over) > 1 else (np.nan, np.nan)
            rows.append(dict(drafter=rates.drafter, hardware=hardware, source=source, target=target, batch=batch,
                             level=level, budget=budget, speedup=speeds[id(tree)][0], chain=chain.budget, value=over[0],
                             low=low, high=high, n_prompts=rates.prompts))
    return pd.DataFrame(rows)


def candidates(table: np.ndarray, budget: int) -> list[Tree]:
    """For each number of levels the tree of `budget` nodes that accepts most; table: float[D, R]. None where depths and
    ranks leave too few nodes.
    """
    able = [depth for depth in range(1, min(budget, len(table)) + 1)
            if sum(table.shape[1]**level for level in range(1, depth + 1)) >= budget]
    return [shapes.sparse(table[:depth], budget) for depth in able]


def accepted(tree: Tree, acceptance: np.ndarray) -> np.ndarray:
    """`shapes.expected_accepted` for each of several tables; acceptance: float[N, D, R], returns float[N]."""
    reach = np.ones((tree.size, len(acceptance)))
    for node in range(1, tree.size):
        reach[node] = reach[tree.parents[node]] * acceptance[:, tree.depth[node] - 1, tree.rank[node]]
    return reach[1:].sum(0)
