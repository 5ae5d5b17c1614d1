"""OpenVINO GenAI on processors: its environment and driver, the form of weights that it reads, and a drafter that
drafts as its look-up does, for replay.

What is said of it holds for 2026.4.
"""

import tempfile
from itertools import product
from pathlib import Path

from lib.engines import exports
from lib.engines.driver import Engine, Worker
from lib.engines.environments import Environment
from lib.engines.methods import FORCED, LONGEST, PLAIN, Method, Way, cut, shortened
from lib.engines.vllm import NgramDrafter
from lib.lab import provenance
from lib.trees.growth import Eagle2

ENVIRONMENT = Environment(
    "openvino", [("install", "openvino-genai==2026.4.1.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0",
                  "optimum-intel==2.2.0", "optimum==2.3.0", "nncf==3.4.0", "transformers==5.5.4", "torch==2.13.0"),
                 # That of an index may be for another build of torch, and weights are not exported beside it.
                 ("uninstall", "-y", "torchvision")],
    "Apache-2.0", 1.7, 3, ["weights are exported to OpenVINO's form with PyTorch: its build for processors is enough",
                           "in bfloat16 on processors with AMX it needs two threads: with one its process dies"])
LOOKUP, DRAFT_MODEL, EAGLE3 = "prompt_lookup", "draft_model", "eagle3"
UNKNOWN = -1  # in the place of a draft token that look-up does not find
WEIGHTS = {"float32": "fp32", "bfloat16": "fp16"}  # of the exported files; they are computed with in the number format


class FilledLookupDrafter(NgramDrafter):
    """Drafts as the engine's look-up: the tokens after the first occurrence of the text's last tokens, filled up to the
    shape's depth with UNKNOWN, since the engine checks as many tokens in each round, found or not.
    """

    def changed(self, tokens: list[int], depth: int) -> list[int]:
        return tokens + [UNKNOWN] * (depth - len(tokens))


class OpenVino(Engine):
    """Weights are folders that are exported at the first start. With an EAGLE-3 head it also drafts trees."""

    title, environment = "OpenVINO GenAI", ENVIRONMENT
    methods = (
        Method("lookup", LOOKUP, drafter=lambda pair, tokens: FilledLookupDrafter(LONGEST), ending=cut),
        Method("model", DRAFT_MODEL, exports.draft_model, ending=shortened),
        Method("eagle3", EAGLE3, exports.eagle3_head, ending=shortened),
        # Trees that grow anew in each round (EAGLE-2), for one prompt at a time; they have more nodes than levels.
        *(Method("eagle3", f"{EAGLE3}/{width}x{depth}", exports.eagle3_head, ending=cut, alone=True, least=depth + 1,
                 shape=f"eagle2:{width},{depth}@{{}}".format) for width, depth in product((2, 4), (2, 3, 4, 6))))

    def command(self, way: Way) -> str:
        options = ", ".join(f"{name}={value}" for name, value in options_of(way).items())
        model = f'draft_model=draft_model({way.weights!r}, "CPU")' if way.weights else "prompt_lookup=True"
        return f'LLMPipeline(MODEL, "CPU", {model}); GenerationConfig({options})'

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Worker:
        precision = {"float32": "f32", "bfloat16": "bf16"}[self.dtype]
        properties = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision,
                      "INFERENCE_NUM_THREADS": self.threads}
        return Worker(
            self.title, ENVIRONMENT.python, "openvino_worker.py", log, {}, method=way.method, options=options_of(way),
            model=exported(exports.folder(self.target), self.dtype, log), properties=properties, batch=batch,
            drafter=exported(Path(way.weights), self.dtype, log) if way.weights else "", batched_tokens=window * batch)


def options_of(way: Way) -> dict[str, object]:
    """Members of the engine's `GenerationConfig`."""
    if way.method == PLAIN:
        return {}
    options = {LOOKUP: {"max_ngram_size": LONGEST}, FORCED: {"max_ngram_size": 1}}.get(way.method, {})
    if isinstance(way.shape, Eagle2):
        options = {"branching_factor": way.shape.width, "tree_depth": way.shape.max_depth}
    return {"num_assistant_tokens": way.nodes, **options}


def exported(source: Path, dtype: str, log: Path) -> str:
    """A model's folder in OpenVINO's form, made once of one in transformers' layout or of an EAGLE-3 head's in that of
    its authors. log: of the exporter. RuntimeError with its last lines where it fails.
    """
    source, weights = source.resolve(), WEIGHTS[dtype]
    folder = exports.WEIGHTS / f"{source.name}-{provenance.file_digest(source)[:12]}-openvino-{weights}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            with Worker("OpenVINO's exporter", ENVIRONMENT.python, "openvino_export.py", log, {"HF_HUB_OFFLINE": "1"},
                        source=str(source), into=str(made), weights=weights):
                made.rename(folder)
    return str(folder)
