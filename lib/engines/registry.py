"""The engines that can be driven here, by name, with a number format and options behind colons."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from importlib import import_module

from lib.engines.driver import PLAIN, Engine, Method, Running, Setting, Way
from lib.engines.environments import Environment

HOMES = {"vllm": "vllm:VLLM", "llama.cpp": "llama_cpp:LLAMA_CPP", "openvino": "openvino:OPENVINO",
         "transformers": "transformers:TRANSFORMERS"}
DTYPES = ("float32", "bfloat16", "stored")
OWN = {"vllm": ("compiled",), "llama.cpp": ("stored",)}  # what only some engines take: an option, or a number format


def engine(name: str) -> Engine:
    """An engine by name. ValueError for an unknown one."""
    if name not in HOMES:
        raise ValueError(f"engine is {name!r}; choose one of {', '.join(HOMES)}")
    module, _, attribute = HOMES[name].partition(":")
    return getattr(import_module(f"lib.engines.{module}"), attribute)


def environments() -> dict[str, Environment]:
    """By name the environments that can be made."""
    return {name: made for name in HOMES if (made := engine(name).environment).steps}


@dataclass(frozen=True)
class Chosen:
    """An engine with a number format, and options that hold for all its settings."""

    engine: Engine
    dtype: str = DTYPES[0]
    options: dict[str, object] = field(default_factory=dict)

    def start(self, target, setting: Setting, **settings) -> AbstractContextManager[Running]:
        """See `Engine.start`; target: as `load_pair` gives it."""
        return self.engine.start(self.engine.weights(target, self.dtype), self._with_options(setting),
                                 dtype=self.dtype, **settings)

    def line(self, setting: Setting) -> str:
        """What a user of the engine sets."""
        return self.engine.line(self._with_options(setting)) if setting.method != PLAIN else ""

    def methods(self, kind: str) -> list[Method]:
        """The methods for a kind of drafter, or a draft model, whose kind is "model"."""
        return [method for method in self.engine.methods if method.kind == kind]

    def _with_options(self, setting: Setting) -> Setting:
        return replace(setting, options={**self.options, **setting.options})


def parse(spec: str) -> Chosen:
    """An engine as "vllm", "vllm:bfloat16" or "vllm:compiled". ValueError names what is wrong with another text."""
    name, *options = spec.split(":")
    found, taken = engine(name), (*DTYPES[:2], *OWN.get(name, ()))
    formats = [option for option in options if option in DTYPES]
    if len(formats) > 1 or len({*options}) < len(options) or not {*options} <= {*taken}:
        raise ValueError(f"engine is {spec!r}; after {name} give one number format at most, and each word once, of "
                         f"{', '.join(taken)}")
    return Chosen(found, *formats, options={option: True for option in options if option not in DTYPES})


def ways(method: Method, pair, lengths: list[int]) -> list[Way]:
    """A method with each of these numbers of draft tokens, for a pair."""
    setting = method.setting(pair)
    return [Way(replace(setting, tokens=length), method, method.replays(pair, length)) for length in lengths]
