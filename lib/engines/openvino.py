"""OpenVINO GenAI on processors: its environment and driver, the form of weights that it reads, and a drafter that
drafts as its look-up does, for replay.

What is said of it holds for 2026.4.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from lib.drafters.drafter import UNKNOWN, merge
from lib.drafters.lookup import IndexedText
from lib.engines import environments, exports
from lib.engines.driver import TOLD, EngineError, Method, Setting, Worker, drafts_as
from lib.engines.environments import Environment
from lib.engines.vllm import NgramDrafter
from lib.engines.writer import LONGEST
from lib.lab import provenance
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

ENVIRONMENT = Environment(
    "openvino", [("install", "openvino-genai==2026.4.1.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0",
                  "optimum-intel==2.2.0", "optimum==2.3.0", "nncf==3.4.0", "transformers==5.5.4", "torch==2.13.0"),
                 # That of an index may be for another build of torch, and weights are not exported beside it.
                 ("uninstall", "-y", "torchvision")],
    "Apache-2.0", 1.7, 3, ["weights are exported to OpenVINO's form with PyTorch: its build for processors is enough"])
LOOKUP, DRAFT_MODEL = "prompt_lookup", "draft_model"
WEIGHTS = {"float32": "fp32", "bfloat16": "fp16"}  # of the exported files; they are computed with in the number format
OF_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "chat_template*", "vocab*", "merges.txt")


class FilledLookupDrafter(NgramDrafter):
    """Drafts as the engine's look-up: the tokens after the first occurrence of the text's last tokens, filled up to the
    shape's depth with UNKNOWN, since the engine checks as many tokens in each round, found or not.
    """

    def __init__(self, max_ngram_size: int):
        super().__init__(max_ngram_size, 1)

    def draft(self, text: IndexedText, shape: Tree | Growth) -> Draft:
        """One chain."""
        root, *found = super().draft(text, shape).token_list
        return merge(root, [found + [UNKNOWN] * (shape.max_depth - len(found))])


class OpenVino:
    """The engine: see `driver.Engine`.

    Models are folders in Hugging Face's form, exported at the first start; a drafter without a tokenizer has the
    target's. A setting's options are members of the engine's `GenerationConfig`: max_ngram_size for look-up.
    """

    name, environment, batches, idles = "OpenVINO GenAI", ENVIRONMENT, True, False
    methods = (
        Method("lookup", LOOKUP, lambda pair: Setting(LOOKUP, options={"max_ngram_size": LONGEST}),
               lambda pair, tokens: FilledLookupDrafter(LONGEST)),
        Method("model", DRAFT_MODEL, exports.with_model(DRAFT_MODEL), drafts_as("model"), True))

    def weights(self, target, dtype: str) -> str:
        """As `driver.Engine.weights`."""
        return str(exports.folder(target))

    def line(self, setting: Setting) -> str:
        """As `driver.Engine.line`."""
        values = {"num_assistant_tokens": setting.tokens, **setting.options}
        options = ", ".join(f"{name}={value}" for name, value in values.items())
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
            self.name, ENVIRONMENT.python, "openvino_worker.py", log, {}, model=str(exported(model, dtype)),
            method=setting.method, tokens=setting.tokens, options=dict(setting.options),
            drafter=str(exported(setting.drafter, dtype, model)) if setting.drafter else "",
            properties=properties, batch=batch, batched_tokens=window * batch)


OPENVINO = OpenVino()


def exported(folder: str, dtype: str, tokenizer: str = "") -> Path:
    """A model's folder in OpenVINO's form, made of one in Hugging Face's and kept beside the environments.

    tokenizer: a folder that has one, for a model without. EngineError with the last lines where it cannot be exported.
    """
    source, weights = Path(folder).resolve(), WEIGHTS[dtype]
    place = environments.HOME / "weights" / f"{source.name}-{provenance.file_digest(source)[:12]}-openvino-{weights}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as room:
        whole = Path(room, source.name)
        whole.mkdir()
        for file in [*source.iterdir(), *(file for part in OF_TOKENIZER for file in Path(tokenizer).resolve().glob(part)
                                          if tokenizer)]:
            if not (whole / file.name).exists():
                (whole / file.name).symlink_to(file)
        command = [str(ENVIRONMENT.python.with_name("optimum-cli")), "export", "openvino", "--model", str(whole),
                   "--weight-format", weights, "--task", "text-generation-with-past", str(Path(room, "made"))]
        done = subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode:
            raise EngineError(f"{folder} cannot be exported for {OPENVINO.name}:\n"
                              + "\n".join(done.stdout.splitlines()[-TOLD:]))
        Path(room, "made").rename(place)
    return place
