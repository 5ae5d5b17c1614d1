"""The registry of rules: the name of each, whether it is lossless, and the drafts that it is valid and made for."""

from dataclasses import dataclass
from typing import Callable

from torch import Tensor

from lib.verify import fast, plain
from lib.verify.draft import PROPOSALS, Draft, Draws

Verify = Callable[[Draft, Tensor, Draws], tuple[list[int], int]]
ANY, IID, DISTINCT = frozenset(PROPOSALS), frozenset(["iid"]), frozenset(["without_replacement"])


@dataclass(frozen=True)
class Rule:
    """A verification rule; its functions in `plain`, and in `fast` if it has a faster form, have the rule's name.

    lossless: whether the emitted tokens have the target's distribution.
    proposals: the ways of choosing children that it is valid for.
    made_for: the one of them that it was published for, with which studies and explorers decode.
    shapes: "any" or "chain".
    paper: where it was published, or what it is; for tables.
    compares: whether it compares with the drafter's probabilities of children that were chosen, not sampled.
    """

    name: str
    lossless: bool
    proposals: frozenset[str]
    made_for: str
    shapes: str
    paper: str
    compares: bool = False

    @property
    def plain(self) -> Verify:
        """The rule in the form in which its paper states it."""
        return getattr(plain, self.name)

    @property
    def fast(self) -> Verify:
        """The rule in the form that decodes."""
        return getattr(fast, self.name, self.plain)

    @property
    def sampled(self) -> bool:
        """Whether it needs a temperature above 0."""
        return self.name != "greedy"


_RULES = (
    Rule("greedy", True, ANY, "top_k", "any", "Leviathan et al. 2023, temperature 0"),
    Rule("naive", True, ANY, "top_k", "any", "Miao et al. 2024, naive sampling"),
    Rule("multi_step", True, IID, "iid", "any", "Miao et al. 2024, Alg. 2"),
    Rule("k_seq", True, IID, "iid", "any", "Sun et al. 2023 (SpecTr), K-SEQ"),
    Rule("without_replacement", True, DISTINCT, "without_replacement", "any", "Chen et al. 2024, Alg. 2"),
    Rule("block", True, ANY, "iid", "chain", "Sun et al. 2024, block verification"),
    Rule("traversal", True, ANY, "without_replacement", "any", "Weng et al. 2025, traversal verification"),
    Rule("typical", False, ANY, "top_k", "any", "Cai et al. 2024, section 2.3.1"),
    Rule("deterministic", False, ANY, "top_k", "any", "p >= q, from blog posts", compares=True),
    Rule("conservative", False, ANY, "top_k", "any", "p >= q / 2, from blog posts", compares=True),
    Rule("threshold", False, ANY, "top_k", "any", "SGLang, speculative_accept_threshold_single and _acc"),
)
RULES = {rule.name: rule for rule in _RULES}


def simplest_rule(proposal: str) -> str:
    """The lossless rule for sampling on any tree that was made for a proposal; of several the first of RULES."""
    return next(rule.name for rule in RULES.values()
                if rule.lossless and rule.sampled and rule.shapes == "any" and rule.made_for == proposal)


def verify(name: str, draft: Draft, target_probs: Tensor, draws: Draws, **settings) -> tuple[list[int], int]:
    """The accepted nodes, root excluded, in the order of the path; and the bonus token.

    target_probs float[m, V]: the warped target's distribution of the next token at each node. settings: the rule's own
    keywords, such as a threshold. ValueError for an unknown rule, for a proposal or shape that the rule is not valid
    for, or if sizes of tree, target and drafter differ.
    """
    if name not in RULES:
        raise ValueError(f"rule is {name!r}; choose one of {', '.join(RULES)}")
    rule, tree = RULES[name], draft.tree
    if draft.proposal not in rule.proposals:
        valid = ", ".join(sorted(rule.proposals))
        raise ValueError(f"rule {name!r} is not valid for {draft.proposal!r} drafts, only for {valid}; draft "
                         "otherwise, or verify with 'naive', which takes any")
    if rule.shapes == "chain" and tree.max_depth != tree.budget:
        raise ValueError(f"rule {name!r} is defined for chains, the draft is {tree}; draft a chain, or choose another "
                         "rule")
    if target_probs.dim() != 2 or len(target_probs) != tree.size:
        raise ValueError(f"target_probs has shape {tuple(target_probs.shape)} for a tree of {tree.size} nodes; "
                         f"give one row per node: [{tree.size}, V]")
    if tree.budget and draft.probs is not None and draft.probs.shape[-1] != target_probs.shape[-1]:
        raise ValueError(f"the drafter's probabilities are over {draft.probs.shape[-1]} tokens, the target's over "
                         f"{target_probs.shape[-1]}; cut both to their common tokens")
    return rule.fast(draft, target_probs, draws, **settings)
