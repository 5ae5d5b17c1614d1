"""Expected acceptance under rules that sample their children, from a trace: exact but for the text that was sampled.

A rule that decides node by node accepts, of a round that starts somewhere in the target's text c_1, c_2, ..., the
node at depth d whose path has the places j_1 .. j_d with chance A_j1(c_1) / p(c_1) ... A_jd(c_d) / p(c_d); see
`acceptance_chances`. Only distributions along the text are needed, none off it. Conditions: the rule is lossless and
decides node by node (block verification has a form of its own, traversal has none); drafter and target were warped by
the trace's temperature; the text was sampled from the target at that temperature. Then nothing is assumed: the mean
over texts is the expected accepted length, and intervals from resampling prompts are those of the text.
"""

import numpy as np
import pandas as pd

from lib.replay.acceptance import REAL_TEXT
from lib.replay.trace import Trace
from lib.trees.tree import Tree


def survival(trace: Trace, tree: Tree, drafter: str, rule: str) -> np.ndarray:
    """float[N, L, D + 1]: the chance that a round that starts at a transition accepts at least d = 0 .. D tokens.

    Children of a node stand in draw order. ValueError where the trace has no chances for so many siblings.
    """
    inside = np.arange(trace.tokens.shape[1] - 1)[None] < trace.lengths[:, None]
    alive = {0: inside.astype(float)}
    found = np.zeros((*inside.shape, tree.max_depth + 1))
    found[..., 0] = alive[0]
    for node in range(tree.size):
        children = tree.children(node)
        if not children:
            continue
        depth = int(tree.depth[node])
        steps = _ahead(_chances(trace, drafter, rule, len(children)), depth)
        for place, child in enumerate(children):
            alive[child] = alive[node] * steps[..., place]
            found[..., depth + 1] += alive[child]
    return found


def block_survival(trace: Trace, length: int, drafter: str) -> np.ndarray:
    """float[N, L, length + 1]: as `survival`, for a chain under block verification (Sun et al. 2024).

    A draft x_1 .. x_i is accepted at least so far with chance w_i = min(1, w_(i-1) p / q). Told backwards from the
    text that is v_i = w_i prod q / p = min(v_(i-1), prod_(l <= i) q(c_l) / p(c_l)), v_0 = 1: a running minimum of
    products where deciding token by token has the product of minima.
    """
    ratio = trace.probs[drafter].astype(float) / np.maximum(trace.target_probs, 1e-12)
    inside = np.arange(ratio.shape[1])[None] < trace.lengths[:, None]
    ratio = np.where(inside, ratio, 0.0)
    found = np.zeros((*ratio.shape, length + 1))
    found[..., 0] = inside
    product = inside.astype(float)
    for depth in range(length):
        product = product * _ahead(ratio, depth)
        found[..., depth + 1] = np.minimum(found[..., depth], product)
    return found


def tally(trace: Trace, survive: np.ndarray) -> pd.DataFrame:
    """One row a prompt and stretch, as `acceptance.tally` has them, in expectation: rounds that no end cut, and what
    they accept; the rounds are those of the trace's protocol.
    """
    weight = _first_starts(trace) if trace.about["protocol"] == REAL_TEXT else _chained_starts(survive)
    left = trace.lengths[:, None] - np.arange(survive.shape[1])[None]
    depths = np.arange(survive.shape[2])
    ends_at = survive - np.pad(survive[..., 1:], ((0, 0), (0, 0), (0, 1)))  # accepts exactly d tokens
    horizon = trace.about["protocol"] == REAL_TEXT and trace.lengths[:, None] == survive.shape[1]
    whole = ends_at * ((depths < left[..., None]) | np.asarray(horizon)[..., None])
    rounds, accepted = weight * whole.sum(-1), weight * (whole * depths).sum(-1)
    looped = np.arange(survive.shape[1])[None] >= trace.loops[:, None]
    frames = [
        pd.DataFrame(
            {
                "prompt": trace.prompts,
                "kind": trace.kinds,
                "stretch": stretch,
                "rounds": np.where(looped == loop, rounds, 0).sum(-1),
                "accepted": np.where(looped == loop, accepted, 0).sum(-1),
            }
        )
        for stretch, loop in (("before", False), ("loop", True))
    ]
    found = pd.concat(frames).groupby(["prompt", "kind", "stretch"], as_index=False).sum()
    return found[found["rounds"] > 0].reset_index(drop=True)


def _chained_starts(survive: np.ndarray) -> np.ndarray:
    """float[N, L]: the chance that one of the rounds which follow one another from a row's beginning starts there."""
    rows, width, depths = survive.shape
    ends_at = survive - np.pad(survive[..., 1:], ((0, 0), (0, 0), (0, 1)))
    weight = np.zeros((rows, width + depths))
    weight[:, 0] = 1
    for start in range(width):
        weight[:, start + 1 : start + 1 + depths] += weight[:, start, None] * ends_at[:, start]
    return weight[:, :width] * survive[..., 0]


def _first_starts(trace: Trace) -> np.ndarray:
    weight = np.zeros((len(trace.lengths), trace.tokens.shape[1] - 1))
    weight[:, 0] = trace.lengths > 0
    return weight


def _ahead(values: np.ndarray, steps: int) -> np.ndarray:
    """values [N, L, ...] of the transition `steps` further on; 0 behind the end."""
    moved = np.zeros_like(values, dtype=float)
    moved[:, : max(0, values.shape[1] - steps)] = values[:, steps:]
    return moved


def _chances(trace: Trace, drafter: str, rule: str, siblings: int) -> np.ndarray:
    """float[N, L, >= siblings]; without replacement a larger k serves a smaller one."""
    kept = {name.rpartition("|")[2]: name for name in trace.chances if name.startswith(f"{drafter}|{rule}|")}
    enough = sorted(int(k) for k in kept if int(k) >= siblings)
    if not enough or (rule != "without_replacement" and enough[0] != siblings):
        raise ValueError(
            f"the trace keeps no chances of rule {rule!r} for {siblings} children of {drafter!r}; it has "
            f"{', '.join(trace.chances) or 'none'}: record it at a temperature above 0 with siblings={siblings}"
        )
    return trace.chances[kept[str(enough[0])]]
