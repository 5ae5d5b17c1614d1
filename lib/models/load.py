"""Loading pairs through transformers' own classes: no code from a hub runs, weights come from safetensors alone."""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Callable, Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from lib import attention
from lib.models import checks, sizes
from lib.models import quantize as bits
from lib.models.registry import PAIRS, SHIPPED, Source, sources


@dataclass(frozen=True)
class Pair:
    """A target and a draft model (transformers models with tree attention) and their tokenizer."""

    name: str
    target: object
    draft_model: object
    tokenizer: object
    target_name: str
    drafter_name: str

    @property
    def vocabulary(self) -> int:
        """Tokens that both models know."""
        return min(self.target.config.vocab_size, self.draft_model.config.vocab_size)

    @property
    def window(self) -> int | None:
        """Positions that both models have; None where neither has a limit."""
        limits = [getattr(model.config, "max_position_embeddings", None) for model in self._models]
        return min((limit for limit in limits if limit), default=None)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end the target's text: those of its generation settings, else the tokenizer's."""
        ids = self.target.generation_config.eos_token_id
        ids = self.tokenizer.eos_token_id if ids is None else ids
        return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)

    @property
    def folders(self) -> list[str]:
        """The models' folders, where they are local: their content is what results depend on."""
        return [model.name_or_path for model in self._models if Path(model.name_or_path).is_dir()]

    @property
    def revisions(self) -> list[str | None]:
        """The models' commits on the hub; None for local folders."""
        return [getattr(model.config, "_commit_hash", None) for model in self._models]

    @property
    def _models(self) -> tuple[object, object]:
        return self.target, self.draft_model


def load_pair(
    name: str, *, dtype: str | torch.dtype = "float32", device: str = "cpu", quantize: str = bits.NONE
) -> Pair:
    """One pair, as `load_pairs` loads several."""
    return load_pairs([name], dtype=dtype, device=device, quantize=quantize)[0]


def load_pairs(
    names: Sequence[str], *, dtype: str | torch.dtype = "float32", device: str = "cpu", quantize: str = bits.NONE
) -> list[Pair]:
    """Pairs by name (`PAIRS`), or "TARGET|DRAFTER", each a member of the shipped family, a folder, or a hub id with
    "@REVISION" if wanted. A model that several pairs name is loaded once. quantize: "none", "int8" or "int4" (see
    `lib.models.quantize`) for both models, or for each as "int8|none"; lossless then means: as the quantised target.
    dtype likewise: "float32|bfloat16" drafts in bfloat16 what the target verifies in float32.

    Vocabularies that differ by padding are cut to the smaller. PairError (a ValueError) says which model is missing or
    gated, cannot host a tree, does not fit into memory, or has another tokenizer than its partner; all of that is
    looked at before any weights are read.
    """
    dtypes, kinds = checks.dtypes_of(dtype), bits.kinds_of(quantize)
    for own, kind in zip(dtypes, kinds):
        checks.check_device(device, own)
        bits.check(kind, device)
    asked = _named(names)
    config, tokenizer = cache(_config), cache(_tokenizer)
    for pair in asked:
        _check_partners(pair, config, tokenizer)
    every = {(source.short, own): _parameters(config(source)) for pair in asked for source, own in zip(pair, dtypes)}
    checks.check_memory(every, device)
    model = cache(lambda source, own, kind: _model(source, own, device, kind))
    both = [tuple(map(model, pair, dtypes, kinds)) for pair in asked]
    _share_vocabularies(both)
    return [Pair(name, target, drafter, tokenizer(pair[0]), pair[0].short, pair[1].short)
            for name, pair, (target, drafter) in zip(names, asked, both)]


def check_pairs(names: Sequence[str]) -> None:
    """What `load_pairs` refuses of pairs by their names and by the configurations and tokenizers of local folders: no
    weights are read, and the hub is not asked. PairError.
    """
    config, tokenizer = cache(_config), cache(_tokenizer)
    for pair in _named(names):
        local = [source for source in pair if source.is_local]
        for source in local:
            config(source)
        if len(local) == len(pair):
            _check_partners(pair, config, tokenizer)


def _named(names: Sequence[str]) -> list[tuple[Source, Source]]:
    if not names:
        raise checks.PairError(f"no pair is named; choose one or more of {', '.join(PAIRS)}")
    return [sources(name) for name in names]


def _check_partners(pair: tuple[Source, Source], config: Callable, tokenizer: Callable) -> None:
    """PairError where target and drafter do not understand each other's tokens; config, tokenizer: of a source."""
    sizes = tuple(config(source).get_text_config().vocab_size for source in pair)
    checks.check_tokenizers(*map(tokenizer, pair), tuple(source.short for source in pair), sizes)


def _config(source: Source):
    if source.is_random:
        return sizes.config(source.size, source.revision)
    config = _read(AutoConfig, source)
    checks.check_tree(source, config)
    return config


def _tokenizer(source: Source):
    """Its own; the shipped family's where weights are random, to which any text is as good as another."""
    return _read(AutoTokenizer, Source(str(SHIPPED / "base")) if source.is_random else source)


def _read(kind, source: Source, **keywords):
    """`kind.from_pretrained`, whose errors become a PairError whatever they are."""
    keywords |= {"revision": source.revision or "main", "trust_remote_code": False}
    try:
        return kind.from_pretrained(source.where, **keywords)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise checks.why_not(source, error) from error


def _model(source: Source, dtype: torch.dtype, device: str | torch.device, kind: str):
    """A model ready to verify trees; refused where files lack weights, which transformers would fill at random."""
    attention.register()
    on_cpu = torch.device(device).type == "cpu"
    ready_made = {} if kind == bits.NONE or on_cpu else bits.gpu_keywords(kind) | {"device_map": device}
    try:
        if source.is_random:
            return _random(source, dtype, device, kind)
        with _silence(bars=source.is_folder):
            model, found = _read(AutoModelForCausalLM, source, dtype=dtype, attn_implementation=attention.TREE,
                                 use_safetensors=True, output_loading_info=True, **ready_made)
        if found["missing_keys"]:
            raise checks.PairError(f"{source} lacks weights for {', '.join(sorted(found['missing_keys'])[:3])}; its "
                                   "files are incomplete or belong to another config.json: fetch or save them again")
        if kind != bits.NONE and on_cpu:
            bits.quantize_int8(model)
        return (model if ready_made else model.to(device)).eval()
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise checks.no_memory(source, device) from error


def _random(source: Source, dtype: torch.dtype, device: str | torch.device, kind: str):
    """A published size with random weights."""
    if kind != bits.NONE:
        raise checks.PairError(f"{source} has random weights, and quantize is {kind!r}; take 'none', or save the model "
                               "to a folder and name that")
    return sizes.build(_config(source), str(source), dtype, device)


def _parameters(config) -> int:
    """How many numbers the model's weights are, from a model without storage."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())


def _share_vocabularies(pairs: Sequence[tuple[object, object]]) -> None:
    """Cuts every model to the smallest vocabulary among its partners: what the others have beyond is padding."""
    def sizes() -> list[tuple[int, int]]:
        return [tuple(model.get_input_embeddings().num_embeddings for model in pair) for pair in pairs]

    while any(ours != theirs for ours, theirs in sizes()):  # a model that several pairs share may have to shrink again
        for pair, both in zip(pairs, sizes()):
            for model, size in zip(pair, both):
                if size > min(both):
                    _cut_vocabulary(model, min(both))


def _cut_vocabulary(model, size: int) -> None:
    with _silence(bars=False):  # transformers would advise to pad the embedding again
        model.resize_token_embeddings(size, mean_resizing=False)


@contextmanager
def _silence(bars: bool):
    """Without transformers' warnings, which a notebook would keep, and if asked without bars: a download needs them."""
    verbosity, bars = logging.get_verbosity(), bars and logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
