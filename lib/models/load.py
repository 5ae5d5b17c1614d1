"""Loads pairs with transformers' own classes: no code from a hub runs, and weights come from safetensors alone."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import torch
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedConfig,
                          PreTrainedTokenizerFast)
from transformers.utils import logging

from lib.attention.registration import TREE, register, takes_chains
from lib.models import checks, registry
from lib.models.dialogue import end_of_turn, has_template
from lib.models.recurrent import read_in_steps
from lib.models.registry import HUB, NANO, NO_MODEL, PAIRS, RANDOM, SMOLLM2, Source, local, sources

SEED = 0  # of random weights
PROVEN = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"  # that verify drafts without a trial
MOST_LAYERS = 1000  # more are a broken file's, and would take hours to build
Format = str | torch.dtype  # a number format, by its name or "auto", or as it is


@dataclass(frozen=True)
class Pair:
    """A target and a draft model (transformers models with tree attention) and their tokenizer.

    name: as it was given, with folders by their own names. draft_model: None for a target alone, for which drafters
    that need no draft model compete; drafter_name is then "none".
    """

    name: str
    target: object
    draft_model: object
    tokenizer: object
    target_name: str
    drafter_name: str
    made_by: tuple[Callable, tuple] | None = None  # a function and its arguments, which make it in another process

    def __reduce__(self):
        """A pair travels to other processes as what made it, without its weights."""
        return self.made_by

    @property
    def models(self) -> tuple[object, ...]:
        """The target, and the draft model if there is one."""
        return (self.target,) if self.draft_model is None else (self.target, self.draft_model)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that all its models have."""
        return min(model.config.vocab_size for model in self.models)

    @property
    def window(self) -> int | None:
        """Positions that its target has; None without a limit. A drafter may have fewer."""
        return getattr(self.target.config, "max_position_embeddings", None)

    @property
    def dtype(self) -> str:
        """The number format of its models, as "stored", or of target and drafter as "float32|bfloat16"."""
        return "|".join(dict.fromkeys(map(checks.format_name, self.models)))

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end the target's text (see `ends_of`)."""
        return ends_of(self.target.generation_config, self.tokenizer, self.target_name)


def load_pair(name: str, dtype: Format = checks.AUTO, device: str = "cpu") -> Pair:
    """One pair; see `load_pairs`."""
    return load_pairs([name], dtype, device)[0]


def load_pairs(names: Sequence[str], dtype: Format | tuple[Format, Format] = checks.AUTO, device: str = "cpu",
               apart: bool = False) -> list[Pair]:
    """Pairs by name (`PAIRS`), or "TARGET|DRAFTER", or "TARGET" alone, each in the form that `registry.source` reads: a
    shipped model, a folder, a GGUF file, or a hub id (optionally with "@REVISION"). A model that several pairs name is
    loaded once. `lib.forward.load_pairs` loads weights of fewer bits as well.

    dtype: of both models, or of target and drafter; "auto" is the device's own (see `checks.own_dtype`). apart: whether
        no target is the same object as a drafter.

    Vocabularies that differ by padding are cut to the smaller. PairError (a ValueError) says which model is missing or
    gated, has no whole weights, cannot verify a tree, does not fit into memory, or has another tokenizer than its
    partner; all of that is checked before any weights are read.
    """
    dtypes = [checks.number_format(part, device) for part in (dtype if isinstance(dtype, tuple) else (dtype, dtype))]
    for number_format in dtypes:
        checks.check_device(device, number_format)
    source_pairs = _sources(names)
    config, tokenizer = cache(config_of), cache(_tokenizer)
    for pair in source_pairs:
        _check_partners(pair, config, tokenizer)
    checks.check_memory({(source.name, number_format): _parameters(source, config(source))
                         for pair in source_pairs for source, number_format in zip(pair, dtypes)}, device)
    model = cache(lambda source, number_format, copy: _model(source, number_format, device))
    model_pairs = [[model(source, dtypes[part], apart and part) for part, source in enumerate(pair)]
                   for pair in source_pairs]
    _share_vocabularies(model_pairs)
    pairs = []
    for name, (source, *drafter_source), (target, *drafter) in zip(names, source_pairs, model_pairs):
        shown = name if name in PAIRS else "|".join(
            part.written if part.kind == HUB else part.name for part in (source, *drafter_source))
        pairs.append(Pair(shown, target, drafter[0] if drafter else None, tokenizer(source), source.name,
                          drafter_source[0].name if drafter else NO_MODEL))
    return reloadable(pairs, load_pairs, names, dtype, device, apart)


def reloadable(pairs: Sequence[Pair], load: Callable, names: Sequence[str], *settings) -> list[Pair]:
    """The pairs that load(names, *settings) gives, which travel to other processes by this call."""
    call = tuple(map(registry.findable, names)), *settings
    return [replace(pair, made_by=(_pair_of, (load, call, index))) for index, pair in enumerate(pairs)]


def _pair_of(load: Callable, call: tuple, index: int) -> Pair:
    """One of the pairs that load(*call) gives, which each process loads once."""
    return _pairs_of(load, call)[index]


@cache
def _pairs_of(load: Callable, call: tuple) -> list[Pair]:
    return load(*call)


def ends_of(settings, tokenizer, name: str) -> tuple[int, ...]:
    """The tokens that end a target's text: of its generation settings, of its tokenizer, and the end of turn of its
    chat template, in this order, each once. Warns where a template does not show by which token a turn ends.
    """
    turn = end_of_turn(tokenizer)
    tokens = [token for ids in (settings.eos_token_id, tokenizer.eos_token_id, turn)
              for token in ([ids] if isinstance(ids, int) else ids or ()) if token >= 0]
    ends = tuple(dict.fromkeys(tokens))
    if turn is None and has_template(tokenizer):
        names = ", ".join(map(str, tokenizer.convert_ids_to_tokens(list(ends)))) or "the length limit"
        warnings.warn(f"the chat template of {name} does not show by which token answers end; they end at {names}; if "
                      "they should not, write the right tokens into generation_config.json (eos_token_id)",
                      stacklevel=2)
    return ends


def ends_by_name(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """By target the tokens that end its text, of pairs by name as `load_pairs` takes them, without their weights."""
    return {source.name: _ends(source, _tokenizer(source), config_of(source)) for source, *_ in _sources(names)}


def _ends(source: Source, tokenizer, config) -> tuple[int, ...]:
    """`ends_of` a source whose model is not loaded, with the settings that transformers would give it."""
    try:
        settings = _read(GenerationConfig, source)
    except checks.PairError:  # not every model has a file of them
        settings = GenerationConfig.from_model_config(config)
    return ends_of(settings, tokenizer, source.name)


@dataclass(frozen=True)
class Served:
    """A target that is served elsewhere, and draft models with its tokenizer, by name, which are loaded.

    config, eos_token_ids: of the target, of which no weights are read and any architecture will do.
    """

    source: Source
    config: object
    tokenizer: object
    eos_token_ids: tuple[int, ...]
    drafters: Mapping[str, object]

    @property
    def name(self) -> str:
        """The target's name as figures show it."""
        return self.source.name

    @property
    def parameters(self) -> int:
        """The number of the target's parameters. PairError where its configuration makes no model here."""
        try:
            return _parameters(self.source, self.config)
        except checks.PairError as error:
            raise checks.PairError(f"the parameters of {self.source}, from which costs are computed, cannot be counted "
                                   f"({error}); give costs as a table that lib/cost/measure_served.py writes where it "
                                   "is served") from None


def load_served(target: str, drafters: Sequence[str], dtype: Format = checks.AUTO, device: str = "cpu") -> Served:
    """A served target's tokenizer and settings, and draft models in this number format; names as `load_pairs` takes
    them. PairError as there, but for the target's architecture and weights.
    """
    (source,), *pairs = _sources([target, *(f"{target}|{name}" for name in drafters)])
    number_format = checks.number_format(dtype, device)
    for pair in pairs:
        _check_partners(pair, config_of, _tokenizer, _settings(source))
    checks.check_memory({(pair[1].name, number_format): _parameters(pair[1], config_of(pair[1])) for pair in pairs},
                        device)
    tokenizer, settings = _tokenizer(source), _settings(source)
    models = {name: _model(pair[1], number_format, device) for name, pair in zip(drafters, pairs)}
    return Served(source, settings, tokenizer, _ends(source, tokenizer, settings), models)


def _settings(source: Source):
    """The configuration of a served target; where it has none that can be read here, its number of tokens alone."""
    try:
        config = config_of(source) if source.kind == RANDOM else _read(AutoConfig, source)
        if isinstance(getattr(config.get_text_config(), "vocab_size", None), int):
            return config
    except checks.PairError:
        pass
    return PreTrainedConfig(vocab_size=len(_tokenizer(source)))


def check_pairs(names: Sequence[str], is_served: bool = False) -> None:
    """PairError for pairs that `load_pairs` would refuse by their names, configurations, files or tokenizers.

    Reads no weights and does not ask the hub: of hub ids it checks the files in the hub's cache, where HF_HUB_OFFLINE
    is set, and nothing otherwise. is_served: whether targets are served elsewhere, for `load_served`.
    """
    config, tokenizer = cache(config_of), cache(_tokenizer)
    for target, *drafter in _sources(names):
        readable = [source for source in (target, *drafter) if source.kind != HUB or _offline()]
        for source in readable:
            (tokenizer if is_served and source is target else config)(source)
        if len(readable) == 1 + len(drafter):
            _check_partners((target, *drafter), config, tokenizer, _settings(target) if is_served else None)


def chats(name: str) -> bool | None:
    """Whether a pair's target has a chat template; None for a hub id, which is only looked up with HF_HUB_OFFLINE."""
    target = local(sources(name)[0])
    return has_template(_tokenizer(target)) if target.kind != HUB or _offline() else None


def _sources(names: Sequence[str]) -> list[tuple[Source, ...]]:
    """The sources of each pair, one or two; GGUF files are converted where they were not yet."""
    if isinstance(names, str):
        raise checks.PairError(f"pairs is {names!r}; give a list of names, such as [{names!r}]")
    if not names:
        raise checks.PairError(f"no pair is named; choose one or more of {', '.join(PAIRS)}")
    with _silence(bars=True):
        return [tuple(local(source) for source in sources(name) if source) for name in names]


def _check_partners(pair: tuple[Source, ...], config: Callable, tokenizer: Callable, served=None) -> None:
    """PairError where target and drafter have different tokens; config, tokenizer: functions of a source; served: the
    target's configuration where it is served elsewhere.
    """
    if len(pair) == 2:
        configs = (served or config(pair[0]), config(pair[1]))
        sizes = tuple(settings.get_text_config().vocab_size for settings in configs)
        checks.check_tokenizers(*map(tokenizer, pair), tuple(source.name for source in pair), sizes)


def _offline() -> bool:
    """Whether the hub must not be asked; the variable counts even if it was set after huggingface_hub was imported."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES


def config_of(source: Source):
    """A source's configuration; PairError where its model cannot work, as far as files on this machine tell."""
    if source.kind == RANDOM:
        return registry.config_of_size(source.where, source.revision)
    folder = Path(source.where) if source.kind != HUB else _snapshot(source) if _offline() else None
    config = _read(AutoConfig, source)
    checks.check_tree(source, config)
    if folder is not None:
        checks.check_weights(source, folder)
    return config


def _snapshot(source: Source) -> Path:
    """The folder of a hub id in the hub's cache. PairError where it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(source.where, "config.json", revision=source.revision)
    except HFValidationError as error:
        raise checks.why_not(source, error) from error
    if not isinstance(path, str):
        raise checks.PairError(f"{source} {checks.UNREACHABLE}")
    return Path(path).parent


def _tokenizer(source: Source):
    """A source's tokenizer; for random weights the shipped family's, since any text serves them, and for the shipped
    drafter its target's. That of a GGUF file is read as it was converted: transformers' class for the type of model may
    cut text in another way.
    """
    if source.written == NANO or source.kind == RANDOM:
        return _tokenizer(local(registry.source(SMOLLM2 if source.written == NANO else "base")))
    return _read(PreTrainedTokenizerFast if source.gguf else AutoTokenizer, source)


def _read(kind, source: Source, **keywords):
    """`kind.from_pretrained`; any error of it becomes a PairError."""
    keywords |= {"revision": source.revision or "main", "trust_remote_code": False}
    try:
        return kind.from_pretrained(source.where, **keywords)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise checks.why_not(source, error) from error


def _model(source: Source, dtype: torch.dtype, device: str | torch.device):
    """A model that verifies trees. PairError where files lack weights, which transformers would fill at random."""
    register()
    try:
        if source.kind == RANDOM:
            with torch.random.fork_rng(), torch.device(device):
                torch.manual_seed(SEED)
                model = AutoModelForCausalLM.from_config(config_of(source), dtype=dtype, attn_implementation=TREE)
            model.name_or_path = str(source)  # an empty one would be taken for the current folder
        else:
            with _silence(bars=source.kind != HUB):
                model, info = _read(AutoModelForCausalLM, source, dtype=dtype, attn_implementation=TREE,
                                    use_safetensors=True, output_loading_info=True)
            if info["missing_keys"]:
                raise checks.PairError(f"{source} lacks weights for {', '.join(sorted(info['missing_keys'])[:3])}; its "
                                       "files are incomplete or belong to another config.json: fetch both again")
            model.gguf_file = source.gguf  # from which the folder was made; empty without one
        model = model.to(device).eval()
        if takes_chains(model.config):
            read_in_steps(model)
        if type(model).__name__ not in PROVEN:  # it is tried once
            checks.check_verifies(source, model)
        return model
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise checks.no_memory(source, device) from error


def _parameters(source: Source, config) -> int:
    """The number of a source's parameters. PairError where its configuration makes no model."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", 1)
    if not (isinstance(layers, int) and 0 < layers <= MOST_LAYERS):
        raise checks.PairError(f"config.json of {source} says num_hidden_layers {layers!r}; fetch it again")
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config).num_parameters()
    except Exception as error:  # whatever transformers and torch raise of values that make no model
        raise checks.why_not(source, error) from error


def _share_vocabularies(pairs: Sequence[Sequence[object]]) -> None:
    """Cuts each model to the smallest vocabulary among its partners; what the others have beyond it is padding."""
    cut = True
    while cut:  # a model that several pairs share may shrink again
        cut = False
        for pair in pairs:
            sizes = [model.get_input_embeddings().num_embeddings for model in pair]
            for model, size in zip(pair, sizes):
                if size > min(sizes):
                    cut = True
                    with _silence(bars=False):  # transformers would advise to pad the embedding again
                        model.resize_token_embeddings(min(sizes), mean_resizing=False)


@contextmanager
def _silence(bars: bool):
    """Hides transformers' warnings, which a notebook would keep, and with `bars` progress bars."""
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
