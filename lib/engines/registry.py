"""The engines that can be driven here, by name, with a number format and options behind colons; and what to set in each
engine that can run a drafter of this project.
"""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib.engines import exports
from lib.engines.driver import Running
from lib.engines.environments import Environment
from lib.engines.llama_cpp import LLAMA_CPP, STORED
from lib.engines.methods import PLAIN, Method, Setting, Way
from lib.engines.openvino import OPENVINO
from lib.engines.transformers import TRANSFORMERS
from lib.engines.vllm import VLLM, ranges
from lib.lab.provenance import HOME
from lib.trees.shapes import chain

ENGINES = {"vllm": VLLM, "llama.cpp": LLAMA_CPP, "openvino": OPENVINO, "transformers": TRANSFORMERS}
DTYPES = ("float32", "bfloat16", STORED)
EXTRA = {"vllm": ("compiled",), "llama.cpp": (STORED,)}  # what only some engines take: an option, or a number format
# SGLang's number of draft tokens counts the root, and a top-k of 1 is a chain; by drafter, with its weights.
SGLANG = {
    "eagle3": ("--speculative-algorithm EAGLE3 --speculative-draft-model-path {drafter} --speculative-eagle-topk 1 "
               "--speculative-num-steps {tokens} --speculative-num-draft-tokens {with_root}", exports.eagle3_head),
    "lookup": ("--speculative-algorithm NGRAM --speculative-num-draft-tokens {with_root} "
               "--speculative-ngram-max-bfs-breadth 1", None)}
CHAIN, GROWN = "the chain", "a tree of as many tokens, grown anew in each round"


@dataclass(frozen=True)
class Served:
    """A serving engine with a number format, options that hold for all its settings, and a target (as `load_pair` gives
    it): see `driver.Backend`.

    engine: an object of its driver's module, with name, environment, methods, batches and idles (see `driver.Backend`),
    `line(setting)`, and `start(target, setting, dtype=, threads=, window=, batch=, log=)`, which takes weights in the
    form of `load_pair`.
    """

    name: str
    engine: object
    dtype: str = DTYPES[0]
    options: Mapping[str, object] = field(default_factory=dict)
    target: object = None
    threads: int = 1
    padded, at_once = False, 3  # each way has a process with weights of its own

    batches = property(lambda self: self.engine.batches, doc="As of the engine.")
    idles = property(lambda self: self.engine.idles, doc="As of the engine.")

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Running:
        """As `driver.Backend.start`."""
        return self.engine.start(self.target, self._setting(way), dtype=self.dtype, threads=self.threads, window=window,
                                 batch=batch, log=log)

    def line(self, way: Way) -> str:
        """What a user of the engine sets; nothing for plain decoding."""
        return line(self.engine, self._setting(way))

    def methods(self, drafter: str) -> list[Method]:
        """The methods for a drafter's spec or kind; "model" for a draft model."""
        return [method for method in self.engine.methods if drafter in (method.spec, method.spec.partition(":")[0])]

    def _setting(self, way: Way) -> Setting:
        return replace(way.setting, options={**self.options, **way.setting.options})


def parse(spec: str) -> Served:
    """An engine as "vllm", "vllm:bfloat16" or "vllm:compiled". ValueError names what is wrong with another text."""
    name, *options = spec.split(":")
    if name not in ENGINES:
        raise ValueError(f"engine is {name!r}; choose one of {', '.join(ENGINES)}")
    allowed, formats = (*DTYPES[:2], *EXTRA.get(name, ())), [option for option in options if option in DTYPES]
    if len(formats) > 1 or len({*options}) < len(options) or not {*options} <= {*allowed}:
        raise ValueError(f"engine is {spec!r}; after {name} give one number format at most, and each word once, of "
                         f"{', '.join(allowed)}")
    flags = {option: True for option in options if option not in DTYPES}
    return Served(spec, ENGINES[name], *formats, options=flags)


def environments() -> dict[str, Environment]:
    """By name the environments that can be made."""
    return {name: engine.environment for name, engine in ENGINES.items() if engine.environment.steps}


def line(engine, setting: Setting) -> str:
    """What a user of an engine sets, with paths from the repository's root on; nothing for plain decoding."""
    return "" if setting.method == PLAIN else engine.line(setting).replace(f"{HOME}/", "")


def lines(pair, drafter: str, tokens: int, lengths: Mapping[int, int] | None = None) -> list[dict[str, str]]:
    """What to set in each engine that can run a drafter (its spec) of a pair with so many draft tokens: dicts of
    engine (with its method), draft (CHAIN or GROWN) and setting, a line of text. Engines that cannot read the drafter's
    weights are left out, and no engine takes a static tree that branches.

    lengths: draft tokens by batch size, 0 for plain decoding; where they differ, vLLM's lines have a schedule.
    """
    rows, schedule = [], ranges(lengths or {})
    options = {"schedule": schedule} if len(schedule) > 1 else {}
    for engine in ENGINES.values() if tokens else ():
        for method in engine.methods:
            with suppress(ValueError, OSError):  # from weights that it cannot read, or that cannot be written
                if method.spec == drafter:
                    setting = replace(method.setting(pair, tokens), options=options)
                    rows.append(dict(engine=f"{engine.name}, {method.name}", setting=line(engine, setting),
                                     draft=CHAIN if method.shape is chain else GROWN))
    if drafter in SGLANG and tokens:
        template, weights = SGLANG[drafter]
        with suppress(ValueError, OSError):
            folder = weights(pair).replace(f"{HOME}/", "") if weights else ""
            setting = template.format(drafter=shlex.quote(folder), tokens=tokens, with_root=tokens + 1)
            rows.append(dict(engine="SGLang (not run here)", setting=setting, draft=CHAIN))
    return rows
