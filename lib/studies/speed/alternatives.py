"""The ways of decoding that are compared, by name: transformers' own generation in its variants, this project's loop
with each drafter and tree, with the recommendation, with a policy, and compiled.
"""

from dataclasses import dataclass, replace
from typing import Callable, Iterable, Mapping

from lib.cost import llama_cpp
from lib.cost.llama_cpp import LLAMA
from lib.cost.recommendation import NO_DRAFTER, ForBatch
from lib.cost.round_cost import RoundCost
from lib.cost.ways import ASSISTED, GENERATE, LOOKUP, Run, ours, theirs
from lib.decoding import loop
from lib.drafters.adaptive import AdaptiveDrafter, WhereItPays
from lib.drafters.drafter import ROOT_ALONE
from lib.drafters.heads.store import made_for
from lib.drafters.registry import head_of, make, needs_draft_model
from lib.models.fused import fused
from lib.trees import shapes
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

PLAIN = "loop, plain"
OWN = "model"  # the drafter that is the pair's own model
ADAPTIVE = "adaptive, where it pays"
ADVISED = "recommended"  # the drafter and tree of recommendation.json
TRANSFORMERS = (GENERATE, *ASSISTED, LOOKUP)  # all but the first take one prompt at a time
THEIRS = (*TRANSFORMERS, LLAMA)


@dataclass(frozen=True)
class Alternative:
    """A way of decoding.

    run: continues prompts int64[T]; drafter, shape: kind of drafter and label of the tree, empty where it has none;
    batched: whether it takes more than one prompt at a time.
    """

    name: str
    run: Run
    drafter: str = ""
    shape: str = ""
    batched: bool = True


def all_of(pair, trees: Mapping[tuple[str, str], str | Tree], *, draft: int, new_tokens: int) -> list[Alternative]:
    """Transformers' ways, the plain loop, and the loop with each (drafter, label of a tree) of `trees`; assisted
    generation where the pair has a draft model.

    draft: tokens that assisted generation drafts in its first round. Drafters: specs as `drafters.registry.make` takes.
    """
    names = [name for name in TRANSFORMERS if name not in ASSISTED or pair.draft_model is not None]
    ways = [Alternative(name, theirs(pair, name, new_tokens, draft), batched=name == GENERATE) for name in names]
    ways.append(Alternative(PLAIN, ours(pair, make(NO_DRAFTER, pair), ROOT_ALONE, new_tokens)))
    return ways + [drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens)
                   for (spec, label), shape in trees.items()]


def drafted(name: str, pair, spec: str, label: str, shape: str | Tree | Growth, new_tokens: int,
            generate: Callable = loop.generate) -> Alternative:
    """The loop with a drafter and a tree, whose label is `label`; generate: in place of the loop."""
    return Alternative(name, ours(pair, make(spec, pair), shape, new_tokens, generate), spec, label)


def advised(pair, own: ForBatch, new_tokens: int) -> Alternative:
    """The loop with what is recommended; pair: the one for which it is."""
    return drafted(ADVISED, pair, own.drafter, own.tree, own.shape, new_tokens)


def llama(name: str, pair, new_tokens: int) -> list[Alternative]:
    """llama.cpp's plain decoding of the target's GGUF file, one prompt at a time; none for other targets, and where
    llama-cpp-python is not installed. name: of the pair.
    """
    file = llama_cpp.file_of(name)
    if file is None:
        return []
    run = llama_cpp.llama(file, pair.eos_token_ids, new_tokens, pair.window)
    return [Alternative(LLAMA, run, batched=False)]


def compiled(pair, label: str, shape: str | Tree, *, new_tokens: int) -> list[Alternative]:
    """The plain loop and the loop with this tree, the small blocks of both models compiled; for one prompt at a time,
    since every number of rows needs a graph of its own.
    """
    target, model = (fused(each, "compiled", slots=pair.window or 0) for each in (pair.target, pair.draft_model))
    fast = replace(pair, target=target, draft_model=model)
    plain = ours(fast, make(NO_DRAFTER, fast), ROOT_ALONE, new_tokens)
    own = ours(fast, make(OWN, fast), shape, new_tokens)
    return [Alternative("loop, plain, compiled", plain, batched=False),
            Alternative(f"{OWN}, {label}, compiled", own, OWN, label, batched=False)]


def adaptive(pair, spec: str, checking: RoundCost, drafting: RoundCost, shape: str | Tree, label: str,
             new_tokens: int) -> Alternative:
    """The loop with a drafter that goes as deep into the shape, a chain, as its last rounds advise, or drafts nothing.

    checking: calibrated costs of rounds that always verify whole shapes; drafting: those of the drafter.
    """
    chains = [shapes.chain(length) for length in range(1, shapes.parse(shape).max_depth + 1)]
    rounds = [drafting.draft(tree) + float(checking.check(tree.budget)) for tree in chains]
    policy = WhereItPays(costs=(1.0, *(seconds / checking.plain for seconds in rounds)))
    drafter = AdaptiveDrafter(make(spec, pair), policy)
    return Alternative(ADAPTIVE, ours(pair, drafter, shape, new_tokens), ADAPTIVE, label)


def possible(pair, specs: Iterable[str]) -> list[str]:
    """The pair's own model if it has one, then those of these drafters that the pair can have."""
    names = [OWN, *specs] if pair.draft_model is not None else [spec for spec in specs if not needs_draft_model(spec)]
    made = made_for(pair.target_name)
    return [name for name in dict.fromkeys(names) if not head_of(name) or head_of(name) in made]
