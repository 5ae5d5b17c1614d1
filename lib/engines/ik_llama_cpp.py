"""ik_llama.cpp: its environment, and a driver of this project's worker, which decodes draft trees with its C interface.

As package 0.1.5 works. The server of that engine takes chains alone; its cache takes trees (see the worker).
"""

from pathlib import Path

from lib.attention.registration import takes_chains
from lib.engines import exports
from lib.engines.driver import Engine, Worker
from lib.engines.environments import Environment
from lib.engines.llama_cpp import STORED, file_of
from lib.engines.methods import FORCED, PLAIN, Method, Way

ENVIRONMENT = Environment(
    "ik_llama.cpp", [("install", "ik-llama-cpp-python==0.1.5", "safetensors==0.8.0")], "MIT", gigabytes=0.2, minutes=1,
    notes=["it is built for processors with AVX2, and drafts from text alone, with chains and static trees"])
SHAPES = {"chain:{}": 1, "independent:2@{}": 3, "independent:4@{}": 5, "kary:2@{}": 5}  # with their fewest draft tokens
TABLES = exports.ngram_tables
DRAFTERS = {"lookup": Method.weights, "sam": Method.weights, "ngrams": TABLES, "combined:behind=ngrams": TABLES}
WORKER = "ik_llama_cpp_worker.py"


class IkLlamaCpp(Engine):
    """It decodes one prompt at a time. Keys and values are float16 in all formats: its process dies of float32 ones."""

    title, environment, words, batches = "ik_llama.cpp", ENVIRONMENT, (*Engine.words, STORED), False
    methods = tuple(Method(spec, spec.partition(":")[0], weights, shape=shape.format, least=least)
                    for spec, weights in DRAFTERS.items() for shape, least in SHAPES.items())

    def command(self, way: Way) -> str:
        """The call of the worker's function, whose `decode` then drafts so."""
        settings = ", ".join(f"{name}={value!r}" for name, value in drafting(way).items())
        script = Path(__file__).with_name("workers") / WORKER
        return f"{script}: start(MODEL, WINDOW, THREADS, {settings})"

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Worker:
        """As `Engine.start`. ValueError for a target whose layers have a state."""
        if takes_chains(self.target.config):
            raise ValueError(f"{file_of(self.target)} has layers that keep a state of one sequence, so that "
                             f"{self.title} checks no tree with it; choose the engine llama.cpp")
        return Worker(self.title, ENVIRONMENT.python, WORKER, log, {"OMP_NUM_THREADS": str(self.threads)},
                      model=str(file_of(self.target, self.dtype)), window=window, threads=self.threads, **drafting(way))


def drafting(way: Way) -> dict[str, object]:
    """Arguments of the worker's `start` about drafts: plain and forced ones have no drafter there."""
    drafter = "" if way.method in (PLAIN, FORCED) else way.method
    return dict(drafter=drafter, tables=way.weights or "", parents=way.shape.parents.tolist(),
                ranks=way.shape.rank.tolist())
