"""The engines that can be driven here, by name, with a number format and options behind colons."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib.engines.driver import Engine, Running
from lib.engines.environments import Environment
from lib.engines.llama_cpp import LLAMA_CPP
from lib.engines.methods import PLAIN, Method, Setting, Way
from lib.engines.openvino import OPENVINO
from lib.engines.transformers import TRANSFORMERS
from lib.engines.vllm import VLLM
from lib.lab.provenance import HOME

ENGINES: dict[str, Engine] = {"vllm": VLLM, "llama.cpp": LLAMA_CPP, "openvino": OPENVINO, "transformers": TRANSFORMERS}
DTYPES = ("float32", "bfloat16", "stored")
OWN = {"vllm": ("compiled",), "llama.cpp": ("stored",)}  # what only some engines take: an option, or a number format


def engine(name: str) -> Engine:
    """An engine by name. ValueError for an unknown one."""
    if name not in ENGINES:
        raise ValueError(f"engine is {name!r}; choose one of {', '.join(ENGINES)}")
    return ENGINES[name]


def environments() -> dict[str, Environment]:
    """By name the environments that can be made."""
    return {name: one.environment for name, one in ENGINES.items() if one.environment.steps}


@dataclass(frozen=True)
class Served:
    """A serving engine with a number format, options that hold for all its settings, and a target (as `load_pair` gives
    it): see `driver.Backend`.
    """

    name: str
    engine: Engine
    dtype: str = DTYPES[0]
    options: dict[str, object] = field(default_factory=dict)
    target: object = None
    threads: int = 1
    padded, at_once = False, 3  # each way has a process with weights of its own

    @property
    def batches(self) -> bool:
        """As of the engine."""
        return self.engine.batches

    @property
    def idles(self) -> bool:
        """As of the engine."""
        return self.engine.idles

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> AbstractContextManager[Running]:
        """As `driver.Backend.start`."""
        return self.engine.start(self.engine.weights(self.target, self.dtype), self._setting(way), dtype=self.dtype,
                                 threads=self.threads, window=window, batch=batch, log=log)

    def line(self, way: Way) -> str:
        """What a user of the engine sets, with places from the repository's root on; nothing for plain decoding."""
        line = self.engine.line(self._setting(way)) if way.setting.method != PLAIN else ""
        return line.replace(f"{HOME}/", "")

    def methods(self, kind: str) -> list[Method]:
        """The methods for a kind of drafter, or a draft model, whose kind is "model"."""
        return [method for method in self.engine.methods if method.kind == kind]

    def _setting(self, way: Way) -> Setting:
        return replace(way.setting, options={**self.options, **way.setting.options})


def parse(spec: str) -> Served:
    """An engine as "vllm", "vllm:bfloat16" or "vllm:compiled". ValueError names what is wrong with another text."""
    name, *options = spec.split(":")
    found, taken = engine(name), (*DTYPES[:2], *OWN.get(name, ()))
    formats = [option for option in options if option in DTYPES]
    if len(formats) > 1 or len({*options}) < len(options) or not {*options} <= {*taken}:
        raise ValueError(f"engine is {spec!r}; after {name} give one number format at most, and each word once, of "
                         f"{', '.join(taken)}")
    return Served(spec, found, *formats, options={option: True for option in options if option not in DTYPES})
