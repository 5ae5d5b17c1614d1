"""Loads pairs with transformers' own classes: no code from a hub runs, and weights come from safetensors alone."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from transformers import (MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM,
                          AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast)
from transformers.utils import GENERATION_CONFIG_NAME, cached_file

from lib.attention.registration import TREE, register, takes_chains
from lib.models import checks, registry
from lib.models.checks import PairError
from lib.models.dialogue import end_of_turn, has_template
from lib.models.recurrent import read_in_steps
from lib.models.registry import HUB, NANO, NO_MODEL, PAIRS, SMOLLM2, Source, local, sources

PROVEN = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"  # that verify drafts without a trial
MOST_LAYERS = 1000  # more are a broken file's, and would take hours to build
Format = str | torch.dtype  # a number format, by its name or "auto", or as it is


@dataclass(frozen=True)
class Pair:
    """A target and a draft model (transformers models with tree attention) and their tokenizer."""

    name: str  # as it was given, with folders by their own names
    target: object
    draft_model: object  # None for a target alone
    tokenizer: object
    target_name: str
    drafter_name: str  # NO_MODEL for a target alone
    made_by: tuple[Callable, str, Format, str] | None = None  # a function and its arguments, which load it again

    def __reduce__(self):
        """A pair travels to other processes as what made it, without its weights."""
        return _loaded, self.made_by

    @property
    def models(self) -> tuple[object, ...]:
        """The target, and the draft model if there is one."""
        return (self.target,) if self.draft_model is None else (self.target, self.draft_model)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that all its models have."""
        return min(model.config.get_text_config().vocab_size for model in self.models)

    @property
    def window(self) -> int | None:
        """Positions that its target has; None without a limit. A drafter may have fewer."""
        return getattr(self.target.config.get_text_config(), "max_position_embeddings", None)

    def room(self, tokens: int) -> float:
        """The tokens of a prompt after which so many others, and a bonus token, fit the target's window."""
        return (self.window or math.inf) - tokens - 1

    @property
    def dtype(self) -> str:
        """The number format of its models, as "stored", or of target and drafter as "float32|bfloat16"."""
        names = (getattr(model, "quantised", None) or checks.dtype_name(model.dtype) for model in self.models)
        return "|".join(dict.fromkeys(names))

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end the target's text (see `ends_of`)."""
        return ends_of(self.target.generation_config, self.tokenizer, self.target_name)


def load_pair(name: str, dtype: Format = checks.AUTO, device: str = "cpu") -> Pair:
    """One pair; see `load_pairs`."""
    return load_pairs([name], dtype, device)[0]


def load_pairs(names: Sequence[str], dtype: Format | tuple[Format, Format] = checks.AUTO, device: str = "cpu",
               apart: bool = False) -> list[Pair]:
    """Pairs by name (`PAIRS`), or "TARGET|DRAFTER", or "TARGET" alone, each in the form that `registry.source` reads. A
    model that several pairs name is loaded once. `lib.forward.load_pairs` loads weights of fewer bits as well.

    dtype: of both models, or of target and drafter; "auto" is `checks.own_dtype`. apart: whether no target is the same
    object as a drafter. Vocabularies that differ by padding are cut to the smaller. PairError (a ValueError), before
    any weights are read, for a model that is missing or gated, cannot verify a tree, does not fit into memory, or has
    another tokenizer than its partner; then for weights that are missing or damaged.
    """
    dtypes = [checks.number_format(part, device) for part in (dtype if isinstance(dtype, tuple) else (dtype, dtype))]
    source_pairs = check_pairs(names)
    checks.check_memory({(source.name, number_format): num_parameters(source, config_of(source))
                         for pair in source_pairs for source, number_format in zip(pair, dtypes)}, device)
    tokenizer_of, model_of = cache(_tokenizer), cache(lambda source, dtype, copy: _model(source, dtype, device))
    model_pairs = [[model_of(source, dtypes[part], apart and part) for part, source in enumerate(pair)]
                   for pair in source_pairs]
    for models in model_pairs * len(model_pairs):  # a model that several pairs share may shrink again
        size = min(model.get_input_embeddings().num_embeddings for model in models)
        for model in models:
            if model.get_input_embeddings().num_embeddings > size:
                model.resize_token_embeddings(size, mean_resizing=False)
    pairs = []
    for name, pair, models in zip(names, source_pairs, model_pairs):
        shown = name if name in PAIRS else "|".join(part.written if part.kind == HUB else part.name for part in pair)
        whole_name = name if name in PAIRS else "|".join(map(str, pair))
        target, drafter = (*models, None)[:2]
        pairs.append(Pair(shown, target, drafter, tokenizer_of(pair[0]), pair[0].name,
                          NO_MODEL if drafter is None else pair[1].name, (load_pair, whole_name, dtype, device)))
    return pairs


@cache
def _loaded(load: Callable, *call) -> Pair:
    """The pair that load(*call) gives, which each process loads once."""
    return load(*call)


def ends_of(settings, tokenizer, name: str) -> tuple[int, ...]:
    """The tokens that end a target's text: of its generation settings, of its tokenizer, and the end of turn of its
    chat template, in this order, each once. Warns where a template does not show by which token a turn ends.
    """
    turn, listed = end_of_turn(tokenizer), settings.eos_token_id
    tokens = (*(listed if isinstance(listed, list) else [listed]), tokenizer.eos_token_id, turn)
    ends = tuple(dict.fromkeys(token for token in tokens if token is not None and token >= 0))
    if turn is None and has_template(tokenizer):
        names = ", ".join(map(str, tokenizer.convert_ids_to_tokens(list(ends)))) or "the length limit"
        warnings.warn(f"the chat template of {name} does not show by which token answers end; they end at {names}; if "
                      "not, write the right tokens into generation_config.json (eos_token_id)", stacklevel=2)
    return ends


@dataclass(frozen=True)
class ServedModel:
    """A target that is served elsewhere, whose weights are not read, and by name draft models, which are loaded."""

    name: str
    config: object
    tokenizer: object
    eos_token_ids: tuple[int, ...]
    drafters: Mapping[str, object]


def served(source: Source, drafters: Mapping[str, object]) -> ServedModel:
    """The served target of a source that `check_pairs` gives, with its draft models by name."""
    tokenizer = _tokenizer(source)
    config = PreTrainedConfig(vocab_size=len(tokenizer))  # where that of the target cannot be read here
    with suppress(PairError):
        config = _read(AutoConfig, source)
    ends = ends_of(_generation_settings(source, config), tokenizer, source.name)
    return ServedModel(source.name, config, tokenizer, ends, drafters)


def check_pairs(names: Sequence[str], is_served: bool = False) -> list[tuple[Source, ...]]:
    """The sources of each pair, one or two, with GGUF files converted. PairError for pairs that `load_pairs` refuses by
    their names, configurations, files or tokenizers; the configuration of a target that is served is not read.
    """
    if isinstance(names, str) or not names:
        raise PairError(f"pairs is {names!r}; give a list of names, such as [{names or 'base/small'!r}]")
    pairs = [tuple(local(source) for source in sources(name) if source) for name in names]
    config, tokenizer = cache(config_of), cache(_tokenizer)
    for pair in pairs:
        for source in pair:
            (tokenizer if is_served and source is pair[0] else config)(source)
        if len(pair) == 2:
            sizes = [1 + max(tokenizer(source).get_vocab().values()) if is_served and source is pair[0] else
                     config(source).get_text_config().vocab_size for source in pair]
            checks.check_tokenizers(*map(tokenizer, pair), [source.name for source in pair], sizes)
    return pairs


def config_of(source: Source):
    """A source's configuration. PairError where its model cannot be built, or cannot verify drafts."""
    config = _read(AutoConfig, source)
    layers = getattr(config.get_text_config(), "num_hidden_layers", 1)
    if not (isinstance(layers, int) and 0 < layers <= MOST_LAYERS):
        raise PairError(f"config.json of {source} has num_hidden_layers {layers!r}; fetch it again")
    checks.check_tree(source, config)
    if config.get_text_config() is not config:
        with checks.errors_of(source), torch.device("meta"):
            text_model(source, _loader(config).from_config(config))
    _generation_settings(source, config)
    return config


def _loader(config) -> type:
    """The class that builds and reads a configuration's model: a language model, or a larger one with one inside."""
    return AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForMultimodalLM


def text_model(source: Source | str, model):
    """The language model inside a model of several modalities, over the same modules; a language model itself.
    PairError where transformers has no such class for it.
    """
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(model.config.get_text_config())]
    if isinstance(model, kind):
        return model
    decoder, output = model.get_decoder(), model.get_output_embeddings()
    decoder.config.tie_word_embeddings = output is not None and output.weight is decoder.get_input_embeddings().weight
    with torch.device("meta"):
        text = kind(decoder.config)
    others = {name for name, _ in text.named_children()} - {text.base_model_prefix, "lm_head"}
    if type(text.base_model) is not type(decoder) or output is None or others:
        raise PairError(f"{source} ({model.config.model_type}) is a model of several modalities, whose text model "
                        "cannot be taken out of it here; choose a model of text")
    setattr(text, text.base_model_prefix, decoder)
    text.set_output_embeddings(output)
    text.generation_config, text.name_or_path = model.generation_config, model.name_or_path
    text.config.name_or_path = model.name_or_path  # where modules for several tokens ahead are looked for
    return text


def _generation_settings(source: Source, config) -> GenerationConfig:
    """A source's generation settings; those of its configuration where it has no file of them. PairError for a broken
    file, which transformers would pass over.
    """
    keywords = {"revision": source.revision or "main"}
    with suppress(OSError):  # a hub that cannot be asked
        if cached_file(source.where, GENERATION_CONFIG_NAME, _raise_exceptions_for_missing_entries=False, **keywords):
            with checks.errors_of(f"{GENERATION_CONFIG_NAME} of {source}"):
                settings = GenerationConfig.from_pretrained(source.where, **keywords)
                listed = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
                if any(type(token) not in (int, type(None)) for token in listed):
                    raise ValueError(f"eos_token_id {settings.eos_token_id!r} is no number of a token")
                return settings
    return GenerationConfig.from_model_config(config)


def _tokenizer(source: Source):
    """A source's tokenizer; for the shipped drafter its target's. That of a GGUF file is read as it was converted:
    transformers' class for the type of model may cut text in another way.
    """
    if source.written == NANO:
        return _tokenizer(local(registry.source(SMOLLM2)))
    return _read(PreTrainedTokenizerFast if source.gguf else AutoTokenizer, source)


def _read(kind, source: Source, **keywords):
    """`kind.from_pretrained`; any error of it becomes a PairError."""
    keywords |= {"revision": source.revision or "main", "trust_remote_code": False}
    with checks.errors_of(source):
        return kind.from_pretrained(source.where, **keywords)


def _model(source: Source, dtype: torch.dtype, device: str | torch.device):
    """A model that verifies trees. PairError where files lack weights, which transformers would fill at random, or have
    others, which it would leave out.
    """
    register()
    model, info = _read(_loader(_read(AutoConfig, source)), source, dtype=dtype, attn_implementation=TREE,
                        use_safetensors=True, output_loading_info=True)
    checks.check_weights(source, model, info["missing_keys"], info["unexpected_keys"])
    whole, model = model, text_model(source, model)
    if model is not whole:
        checks.check_text_model(source, whole, model)
    model.gguf_file = source.gguf  # from which the folder was made; empty without one
    model = model.to(device).eval()
    if takes_chains(model.config):
        read_in_steps(model)
    if type(model).__name__ not in PROVEN:  # it is tried once
        checks.check_verifies(source, model)
    return model


def num_parameters(name: Source | str, config) -> int:
    """The number of a model's parameters. PairError where its configuration makes no model here."""
    with checks.errors_of(name), torch.device("meta"):
        return _loader(config).from_config(config).num_parameters()
