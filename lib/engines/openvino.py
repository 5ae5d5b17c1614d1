"""OpenVINO GenAI on processors: its environment and driver, the form of weights that it reads, and a drafter that
drafts as its look-up does, for replay.

What is said of it holds for 2026.4.
"""

import tempfile
from pathlib import Path

from lib.drafters.drafter import UNKNOWN, merge
from lib.drafters.text_index import LookupIndex
from lib.engines import exports
from lib.engines.driver import Worker
from lib.engines.environments import Environment
from lib.engines.methods import PLAIN, Method, Setting, cut, drafts_as, shortened
from lib.engines.vllm import NgramDrafter
from lib.engines.writer import CHAIN, LONGEST, Writer
from lib.lab import provenance
from lib.trees.growth import Eagle2, Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

ENVIRONMENT = Environment(
    "openvino", [("install", "openvino-genai==2026.4.1.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0",
                  "optimum-intel==2.2.0", "optimum==2.3.0", "nncf==3.4.0", "transformers==5.5.4", "torch==2.13.0"),
                 # That of an index may be for another build of torch, and weights are not exported beside it.
                 ("uninstall", "-y", "torchvision")],
    "Apache-2.0", 1.7, 3, ["weights are exported to OpenVINO's form with PyTorch: its build for processors is enough",
                           "in bfloat16 on processors with AMX it needs two threads: with one its process dies"])
LOOKUP, DRAFT_MODEL, EAGLE3 = "prompt_lookup", "draft_model", "eagle3"
WIDTH, DEPTH = 4, 4  # of trees: the nodes of a level that get as many children each, and levels
WRITERS = {"OpenVINO GenAI, look-up": Writer(
    CHAIN, 'LLMPipeline(MODEL, "CPU", prompt_lookup=True); '
    "GenerationConfig(num_assistant_tokens={nodes}, max_ngram_size={longest})", {"lookup": {}}, "2026.4", "")}
WEIGHTS = {"float32": "fp32", "bfloat16": "fp16"}  # of the exported files; they are computed with in the number format


class FilledLookupDrafter(NgramDrafter):
    """Drafts as the engine's look-up: the tokens after the first occurrence of the text's last tokens, filled up to the
    shape's depth with UNKNOWN, since the engine checks as many tokens in each round, found or not.
    """

    def __init__(self, max_ngram_size: int):
        super().__init__(max_ngram_size, 1)

    def draft(self, text: LookupIndex, shape: Tree | Growth) -> Draft:
        """One chain."""
        root, *found = super().draft(text, shape).token_list
        return merge(root, [found + [UNKNOWN] * (shape.max_depth - len(found))])


class OpenVino:
    """The engine: see `driver.Engine`.

    Weights are folders in transformers' layout, or in that of EAGLE's authors, exported at the first start. A setting's
    options are members of the engine's `GenerationConfig`: max_ngram_size for look-up; branching_factor and tree_depth
    of an EAGLE-3 head for a tree that grows anew in each round (EAGLE-2), one prompt at a time.
    """

    name, environment, batches, idles = "OpenVINO GenAI", ENVIRONMENT, True, False
    methods = (
        Method("lookup", LOOKUP, lambda pair: Setting(LOOKUP, options={"max_ngram_size": LONGEST}),
               lambda pair, tokens: FilledLookupDrafter(LONGEST), cut),
        Method("model", DRAFT_MODEL, exports.with_model(DRAFT_MODEL), drafts_as("model"), shortened),
        Method(EAGLE3, EAGLE3, exports.with_head(EAGLE3), drafts_as(EAGLE3), shortened),
        Method(EAGLE3, "eagle3/tree", exports.with_head(EAGLE3, branching_factor=WIDTH, tree_depth=DEPTH),
               drafts_as(EAGLE3), cut, lambda tokens: Eagle2(WIDTH, min(DEPTH, tokens), tokens), alone=True))

    def weights(self, target, dtype: str) -> str:
        """As `driver.Engine.weights`."""
        return str(exports.folder(target))

    def line(self, setting: Setting) -> str:
        """As `driver.Engine.line`."""
        options = ", ".join(f"{name}={value}" for name, value in options_of(setting).items())
        model = f'draft_model=draft_model({setting.drafter!r}, "CPU")'
        how = "prompt_lookup=True" if setting.method == LOOKUP else model
        return f'LLMPipeline(MODEL, "CPU", {how}); GenerationConfig({options})'

    def start(self, model: str, setting: Setting, *, dtype: str, threads: int, window: int, batch: int,
              log: Path) -> Worker:
        """As `driver.Engine.start`."""
        precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        properties = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision,
                      "INFERENCE_NUM_THREADS": threads}
        return Worker(
            self.name, ENVIRONMENT.python, "openvino_worker.py", log, {}, model=exported(model, dtype, log),
            method=setting.method, options=options_of(setting),
            drafter=exported(setting.drafter, dtype, log) if setting.drafter else "",
            properties=properties, batch=batch, batched_tokens=window * batch)


OPENVINO = OpenVino()


def options_of(setting: Setting) -> dict[str, object]:
    """Members of the engine's `GenerationConfig`; it refuses trees with fewer nodes than levels."""
    found = {"num_assistant_tokens": setting.tokens, **setting.options} if setting.method != PLAIN else {}
    return found | {name: min(depth, setting.tokens) for name, depth in found.items() if name == "tree_depth"}


def exported(folder: str, dtype: str, log: Path) -> str:
    """A model's folder in OpenVINO's form, made once of one in transformers' layout or of an EAGLE-3 head's in that of
    its authors. log: of the exporter. EngineError with its last lines where it fails.
    """
    source, weights = Path(folder).resolve(), WEIGHTS[dtype]
    place = exports.WEIGHTS / f"{source.name}-{provenance.file_digest(source)[:12]}-openvino-{weights}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as room:
            made = Path(room, "made")
            Worker("OpenVINO's exporter", ENVIRONMENT.python, "openvino_export.py", log, {"HF_HUB_OFFLINE": "1"},
                   source=str(source), into=str(made), weights=weights).close()
            made.rename(place)
    return str(place)
