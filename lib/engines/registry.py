"""The engines that can be driven here, by name, with a number format and options behind colons; and what to set in each
engine that can run a drafter of this project.
"""

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress

from lib.engines import exports
from lib.engines.driver import Engine
from lib.engines.ik_llama_cpp import IkLlamaCpp
from lib.engines.llama_cpp import LlamaCpp
from lib.engines.methods import Method, Way
from lib.engines.openvino import OpenVino
from lib.engines.transformers import Transformers
from lib.engines.vllm import COMPILED, Vllm, ranges
from lib.lab.provenance import HOME
from lib.trees import named

ENGINES = {engine.name: engine for engine in (Vllm("vllm"), LlamaCpp("llama.cpp"), IkLlamaCpp("ik_llama.cpp"),
                                              OpenVino("openvino"), Transformers("transformers"))}
# SGLang's number of draft tokens counts the root, and a top-k of 1 is a chain; by drafter, with its weights.
SGLANG = {
    "eagle3": ("--speculative-algorithm EAGLE3 --speculative-draft-model-path {drafter} --speculative-eagle-topk 1 "
               "--speculative-num-steps {tokens} --speculative-num-draft-tokens {with_root}", exports.eagle3_head),
    "lookup": ("--speculative-algorithm NGRAM --speculative-num-draft-tokens {with_root} "
               "--speculative-ngram-max-bfs-breadth 1", Method.weights)}
WEIGHTS = "PATH_OF_THE_DRAFTER"
CHAIN, GROWN = "the chain", "a tree of as many tokens, grown anew in each round"


def parse(spec: str) -> Engine:
    """An engine as "vllm", "vllm:bfloat16" or "vllm:compiled". ValueError names what is wrong with another text."""
    name, *words = spec.split(":")
    if name not in ENGINES:
        raise ValueError(f"engine is {name!r}; choose one of {', '.join(ENGINES)}")
    allowed, formats = ENGINES[name].words, [word for word in words if word != COMPILED]
    if len(formats) > 1 or len({*words}) < len(words) or not {*words} <= {*allowed}:
        raise ValueError(f"engine is {spec!r}; after {name} give one number format at most, and each word once, of "
                         f"{', '.join(allowed)}")
    return type(ENGINES[name])(spec, *formats, compiled=COMPILED in words)


def lines(pair, drafter: str, tokens: int, lengths: Mapping[int, int]) -> list[dict[str, str]]:
    """What to set in each engine that can run a drafter (its spec) of a pair with so many draft tokens: dicts of
    engine (with its method), draft (CHAIN or GROWN) and setting, a line of text with paths from the repository's root
    on. Engines that cannot read the drafter's weights are left out, and of a method's shapes all but the first.

    pair: None for WEIGHTS in the place of its files. lengths: draft tokens by batch size, 0 for plain decoding; where
    they differ, vLLM's lines have a schedule.
    """
    rows, schedule = [], ranges(lengths) if len({*lengths.values()}) > 1 else ()
    methods: dict[tuple[str, str], tuple[Engine, Method]] = {}
    for engine in ENGINES.values():
        for method in engine.methods:
            if method.spec == drafter and method.least <= tokens:
                methods.setdefault((engine.title, method.name), (engine, method))
    for engine, method in methods.values():
        with suppress(ValueError, OSError):  # from weights that it cannot read, or that cannot be written
            shape = named(method.shape(tokens))
            way = Way(drafter, method.name, shape, weights=weights_of(method.weights, pair), schedule=schedule)
            rows.append(dict(engine=f"{engine.title}, {method.name}", setting=engine.line(way),
                             draft=CHAIN if way.is_chain else GROWN))
    if drafter in SGLANG and tokens:
        template, weights = SGLANG[drafter]
        with suppress(ValueError, OSError):
            folder = shlex.quote(weights_of(weights, pair).replace(f"{HOME}/", ""))
            setting = template.format(drafter=folder, tokens=tokens, with_root=tokens + 1)
            rows.append(dict(engine="SGLang (not run here)", setting=setting, draft=CHAIN))
    return rows


def weights_of(weights: Callable[[object], str], pair) -> str:
    """A method's weights of a pair, or WEIGHTS without one where the method reads some."""
    return WEIGHTS if pair is None and weights is not Method.weights else weights(pair)
