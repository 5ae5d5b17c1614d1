"""A weblog's acceptance with probability p / q and no residual, which is not lossless: for comparison alone.

After a rejection it emits a sample of p, or nothing. Neither corrects for the mass of p that q has too much of, so that
both are enumerated here, and no rule decodes with them.
"""

import torch
from torch import Tensor

from lib.trees.shapes import chain
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws, descend
from lib.verify.plain import Outcome
from lib.verify.proof import enumeration
from lib.verify.proof.enumeration import Language, Path
from lib.verify.proof.forks import outcomes

RATIO, AGAIN = "ratio, then p", "ratio, then again"  # after a rejection a sample of p; or nothing, and a new round
PROPOSAL = "iid"  # a chain of samples


def ratio(draft: Draft, target_probs: Tensor, draws: Draws) -> Outcome:
    """Accept the child x of a chain if U < p(x) / q(x), else emit a sample of p, where a residual would be right."""
    def decide(node, children):
        x, p, q = draft.token_list[children[0]], target_probs[node], draft.probs[node]
        return (children[0], None) if draws.uniform() < p[x] / q[x] else (None, draws.categorical(p))

    return descend(draft, target_probs, draws, decide)


def again(target: Language, drafter: Language) -> Language:
    """The language of rounds that add accepted tokens alone, and after a rejection draft again.

    All zeros where target and drafter share no token: no round ever adds one.
    """
    def probs(path: Path) -> Tensor:
        p, emitted = target(path), torch.zeros(len(target(path)), dtype=torch.float64)
        for chance, draft in enumeration.drafts(lambda _: drafter(path), chain(1), PROPOSAL):
            for share, (accepted, _) in outcomes(lambda draws: ratio(draft, torch.stack([p, p]), draws)):
                emitted[draft.token_list[1]] += chance * share * len(accepted)
        return emitted / emitted.sum() if emitted.sum() > 0 else emitted

    return probs


def distance(name: str, target: Language, drafter: Language, shape: Tree) -> float:
    """Total variation between depth + 1 tokens of the target and those of RATIO or AGAIN on a chain of samples; what
    is never emitted counts as an error.
    """
    length = shape.max_depth + 1
    if name == RATIO:
        return enumeration.distance(enumeration.law(ratio, target, drafter, shape, PROPOSAL), target, length)
    there, here = (enumeration.joint(language, length) for language in (target, again(target, drafter)))
    return float((there - here).clamp_min(0).sum())
