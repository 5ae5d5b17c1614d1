"""Number formats, and checks of a pair and of a model's files; errors name the thing, its value and the remedy."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers.quantizers import AutoHfQuantizer

from lib.attention.registration import can_host_tree, takes_chains, tree_forward, using_attention
from lib.kernels import build, products
from lib.lab import processor
from lib.lab.processor import free_memory
from lib.models.cache import TreeCache
from lib.models.files import PairError
from lib.trees.tree import Tree

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO = "auto"  # the number format that is fastest on the device
WHOLE = "take the model in bfloat16, or as a GGUF file"
SCALES = re.compile(r"scale|scales|scale_inv|scale_2|qzeros|zero_point|zeros|absmax|quant_map|quant_state|SCB")
# Tensors that no model needs: frequencies of positions, causal masks that early checkpoints hold, and modules for
# several tokens ahead, which `drafters.mtp` reads.
NEEDLESS = re.compile(r"rotary_emb\.inv_freq$|\.(attn|attention)\.((masked_)?bias|causal_mask)$|(^|\.)mtp[^.]*\.")
AHEAD = re.compile(r"(.*layers\.\d+\.)eh_proj\.")  # of DeepSeek's module, which is a layer after the last


def number_format(dtype: str | torch.dtype, device: str | torch.device = "cpu") -> torch.dtype:
    """A number format by its name, or as it is; "auto" is `own_dtype`. PairError for other words and devices, and where
    the device has no such dtype.
    """
    if dtype != AUTO and dtype_name(dtype) not in DTYPES:
        raise PairError(f"dtype is {dtype!r}; give one of {', '.join((*DTYPES, AUTO))}")
    dtype = own_dtype(device) if dtype == AUTO else DTYPES[dtype_name(dtype)]
    try:
        torch.ones(1, device=device, dtype=dtype) + 1
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise PairError(f"device {str(device)!r} with dtype {dtype_name(dtype)!r} cannot be used here "
                        f"({first_line(error)}); take device 'cpu', or another dtype") from None
    return dtype


def dtype_name(dtype: str | torch.dtype) -> str:
    """A number format as tables name it, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def own_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """bfloat16 on a GPU, and on a processor with units for it, unless a measurement finds the kernels faster in
    float32; float32 on other processors, where PyTorch's bfloat16 products of many rows are far slower.
    """
    if not str(device).startswith("cpu"):
        return torch.bfloat16
    has_units = processor.has_bfloat16_units()
    return torch.bfloat16 if has_units and (build.unavailable() or products.faster_in_bfloat16()) else torch.float32


def check_tree(source, config) -> None:
    """PairError where the model can verify neither a tree nor a chain in one forward pass, or its weights are of fewer
    bits in a form that transformers does not read.
    """
    settings = getattr(config, "quantization_config", None)
    with errors_of(source):
        if settings and not AutoHfQuantizer.supports_quant_method(settings):
            raise PairError(f"{source} has weights of fewer bits by {settings['quant_method']!r}, which transformers "
                            f"does not read; {WHOLE}")
    if reason := can_host_tree(config):
        raise PairError(f"{source} ({config.model_type}) cannot verify a draft in one forward pass: {reason}; choose "
                        "another model, such as a Llama 3, a Gemma, a Qwen or a GPT-2, or let a serving engine decode")


def check_weights(source, model, missing: Collection[str], unused: Collection[str]) -> None:
    """PairError where a model lacks tensors of its files, or these have some that it does not use: missing, unused, as
    transformers names them.
    """
    ahead = tuple(match[1] for match in map(AHEAD.match, unused) if match)
    unused = sorted(name for name in unused if not NEEDLESS.search(name) and not name.startswith(ahead))
    if scales := [name for name in unused if SCALES.search(name.rpartition(".")[2])]:
        raise PairError(f"{source} has weights of fewer bits whose scales are not read here, such as {scales[0]}; "
                        f"{WHOLE}")
    if missing:
        raise PairError(f"{source} lacks weights for {', '.join(sorted(missing)[:3])}; its files are incomplete or "
                        "belong to another config.json: fetch both again")
    if unused:
        raise PairError(f"{source} has tensors for which {type(model).__name__} of its config.json has no place, such "
                        f"as {', '.join(unused[:3])} ({len(unused)} in all); without them it would be another model: "
                        "take the config.json that belongs to the weights, or a model of this class")


@torch.no_grad()
def check_text_model(source, model, text) -> None:
    """PairError where a model of several modalities and the text model inside it give other logits for a text."""
    tokens = torch.arange(8, device=model.device)[None] % text.config.vocab_size
    with errors_of(source):
        whole, part = (one.eval()(tokens, use_cache=False).logits.float() for one in (model, text))
    if not (whole - part).norm() <= 0.01 * whole.norm():
        raise PairError(f"{source} ({model.config.model_type}) reads a text in another way than its text model, "
                        f"{type(text).__name__}; choose a model of text")


@torch.no_grad()
def check_verifies(source, model) -> None:
    """PairError where the logits of the last node of a tree of two branches (for models that take chains, of a chain)
    are not close to those of its path in the model's own attention: less than half as far from them as the logits
    after all nodes as one text are (for chains, after the last node alone).
    """
    chain, vocabulary = takes_chains(model.config), model.config.get_text_config().vocab_size
    tree = Tree([-1, 0, 1, 2, 3] if chain else [-1, 0, 0, 1, 2])
    tokens = torch.randint(vocabulary, (1, 9), generator=torch.Generator().manual_seed(0)).to(model.device)
    text, nodes = tokens[:, :4], tokens[:, 4:]
    depth, mask = (torch.tensor(part, device=model.device) for part in (tree.depth, tree.mask))
    try:
        cache = TreeCache()
        tree_forward(model, text, torch.arange(4, device=model.device), None, cache)
        cache.set_lengths(torch.tensor([4]))
        ours = tree_forward(model, nodes, depth, mask, cache).logits[0, -1].float()
        with using_attention(model, "eager"):
            path, row = (model(torch.cat([text, part], 1), use_cache=False).logits[0, -1].float()
                         for part in (nodes[:, mask[-1]], nodes if not chain else nodes[:, -1:]))
        follows = (ours - path).norm() < (path - row).norm() / 2
        reason = "" if follows else "its attention does not follow the tree's mask"
    except Exception as error:  # whatever an architecture raises that computes otherwise
        reason = first_line(error)
    if reason:
        raise PairError(f"{source} ({model.config.model_type}) cannot verify a draft: {reason}; choose another model")


def check_tokenizers(target, drafter, names: Sequence[str], sizes: Sequence[int]) -> None:
    """PairError with the first token that only one of target and drafter has. Added tokens (such as chat marks) may
    have other names, and embeddings (`sizes`) may be padded; but both models need one for each token that the target's
    tokenizer can write, its padding token excepted.
    """
    added, remedy = target.get_added_vocab() | drafter.get_added_vocab(), "choose two members of one family"
    differing = sorted((index, token) for token, index in target.get_vocab().items() ^ drafter.get_vocab().items()
                       if token not in added)
    if differing:
        raise PairError(f"{names[0]} and {names[1]} have different tokenizers: {len(differing)} tokens have an id in "
                        f"one alone, such as {differing[0][1]!r} the id {differing[0][0]}; {remedy}")
    beyond = sorted((index, token) for token, index in target.get_vocab().items()
                    if index >= min(sizes) and index != target.pad_token_id)
    if beyond:
        raise PairError(f"{names[sizes.index(min(sizes))]} has embeddings for {min(sizes)} tokens, but the tokenizer "
                        f"of {names[0]} writes {len(beyond)} more, such as {beyond[0][1]!r}; {remedy}")


def check_memory(weights: dict[tuple[str, torch.dtype], int], device: str | torch.device) -> None:
    """PairError where models with so many parameters, by name and dtype, do not fit into the device's free memory."""
    needed, free = sum(count * dtype.itemsize for (_, dtype), count in weights.items()), free_memory(device)
    if needed > free:
        models = " and ".join(f"{name} in {dtype_name(dtype)}" for name, dtype in weights)
        raise PairError(f"the weights of {models} need {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on "
                        f"{device}; take a smaller dtype, smaller models or another device")


@contextmanager
def errors_of(source) -> Iterator[None]:
    """Whatever gguf-py, transformers and torch raise of a model's files becomes a PairError."""
    try:
        yield
    except PairError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            reason = "brings code of its own, which never runs here; choose a model that transformers supports"
        elif isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            reason = "does not fit into the free memory; take a smaller dtype, a smaller model or another device"
        elif isinstance(error, PermissionError) or "Permission denied" in str(error):
            reason = f"may not be read or written by this user ({first_line(error)}); change the permissions"
        elif isinstance(error, ImportError):
            reason = f"needs a package that is not installed here ({first_line(error)}); install it, or {WHOLE}"
        elif "ignore_mismatched_sizes" in str(error):
            reason = "has weights of other shapes than its config.json says; fetch or save both again"
        else:
            text = f"{type(error).__name__}: {' '.join(str(error).split()):.400}"
            reason = (f"cannot be read as a model ({text}); check its name and that its files are whole; "
                      "set HF_HUB_OFFLINE=0 to ask the hub")
        raise PairError(f"{source} {reason}") from error


def first_line(error: BaseException) -> str:
    """An error's first line, as part of a sentence; its type where it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:;, ") if lines else type(error).__name__
