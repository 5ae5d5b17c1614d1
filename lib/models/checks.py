"""Checks of a pair and of a model's files; each error names the thing, its value and the remedy."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from lib.attention.registration import can_host_tree, takes_chains, tree_forward, using_attention
from lib.kernels import build, products
from lib.lab import json_text, processor
from lib.lab.processor import free_memory
from lib.models.cache import TreeCache
from lib.trees.tree import Tree

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO = "auto"  # the number format that is fastest on the device
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
UNREACHABLE = ("is not on this machine and the hub cannot be reached; check the network, set HF_HUB_OFFLINE=0 to allow "
               "it, or take a folder or a shipped model")


class PairError(ValueError):
    """A pair that cannot be loaded or cannot work: the thing, the reason and the remedy."""


def number_format(dtype: str | torch.dtype, device: str | torch.device = "cpu") -> torch.dtype:
    """A number format by its name, or as it is; "auto" is the device's own (`own_dtype`). PairError for other words."""
    if dtype == AUTO:
        return own_dtype(device)
    if dtype_name(dtype) not in DTYPES:
        raise PairError(f"dtype is {dtype!r}; give one of {', '.join((*DTYPES, AUTO))}")
    return DTYPES[dtype_name(dtype)]


def dtype_name(dtype: str | torch.dtype) -> str:
    """A number format as tables name it, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def format_name(model) -> str:
    """A model's number format as tables name it: "bfloat16", or that of its weights where they have fewer bits."""
    return getattr(model, "quantised", None) or dtype_name(model.dtype)


def own_dtype(device: str | torch.device = "cpu") -> torch.dtype:
    """bfloat16 on a GPU, and on a processor with units for it where the kernels do not run; float32 on a processor
    without, where PyTorch's bfloat16 products of many rows are far slower; on others the one that a measurement finds
    faster.
    Weights of 16 bits are read as they are in both.
    """
    if not str(device).startswith("cpu"):  # `check_device` refuses devices that are none
        return torch.bfloat16
    has_units = processor.has_bfloat16_units()
    return torch.bfloat16 if has_units and (build.unavailable() or products.faster_in_bfloat16()) else torch.float32


def check_device(device: str | torch.device, dtype: torch.dtype) -> None:
    """PairError where this torch has no such device, or the device no such dtype."""
    try:
        torch.ones(1, device=device, dtype=dtype) + 1
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise PairError(f"device {str(device)!r} with dtype {dtype_name(dtype)!r} cannot be used here "
                        f"({first_line(error)}); take device 'cpu', or another dtype") from None


def check_tree(source, config) -> None:
    """PairError where the model can verify neither a tree nor a chain in one forward pass."""
    if reason := can_host_tree(config):
        raise PairError(f"{source} ({config.model_type}) cannot verify a draft in one forward pass: {reason}; choose "
                        "another model, such as a Llama, a Gemma, a Qwen or a GPT-2")


@torch.no_grad()
def check_verifies(source, model) -> None:
    """PairError where a model, which has storage, does not compute a draft as it computes the text along its path.

    A tree of two branches (for models that take chains, one) is computed after a text; its last node has to be nearer
    to the end of its path in the model's own attention than to the end of all its nodes read as a text.
    """
    chain = takes_chains(model.config)
    tree, vocabulary = Tree([-1, 0, 1, 2, 3] if chain else [-1, 0, 0, 1, 2]), model.config.get_text_config().vocab_size
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


def check_weights(source, folder: Path) -> None:
    """PairError where a folder holds no whole safetensors files; reads their headers alone, not the weights."""
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        try:
            names = sorted(set(json_text.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        except OSError:
            raise PairError(f"{source} holds no {WEIGHTS}, and no other format of weights is read here, since some run "
                            "code; save the model with `model.save_pretrained(FOLDER)` and give that folder") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PairError(f"{source}: {INDEX} is no index of weights; fetch or save it again") from None
    for name in names:
        try:
            with safe_open(folder / name, "np"):
                pass
        except (OSError, SafetensorError) as error:
            fault = "is missing" if isinstance(error, OSError) else "is cut off, or no safetensors file"
            raise PairError(f"{source}: {name} {fault} ({first_line(error)}); fetch or save it again") from None


def check_tokenizers(target, drafter, names: tuple[str, str], sizes: tuple[int, int]) -> None:
    """PairError with the first id that means different texts to target and drafter.

    Added tokens (such as chat marks) may have other names, and embeddings (`sizes`) may be padded; but both models need
    an embedding for each token that the target's tokenizer can write, its padding token excepted.
    """
    both = target, drafter
    ours, theirs = ({index: token for token, index in tokenizer.get_vocab().items()} for tokenizer in both)
    ordinary = set().union(*({*tokenizer.get_vocab().values()} - {*tokenizer.get_added_vocab().values()}
                             for tokenizer in both))
    if differing := [index for index in sorted(ordinary) if ours.get(index) != theirs.get(index)]:
        first = differing[0]
        raise PairError(f"{names[0]} and {names[1]} have different tokenizers: {len(differing)} of {len(ours)} ids "
                        f"differ, {first} is {ours.get(first)!r} to one and {theirs.get(first)!r} to the other; "
                        "a drafter needs its target's vocabulary, choose two members of one family")
    beyond = sorted(index for index in ours if index >= min(sizes) and index != target.pad_token_id)
    if beyond:
        raise PairError(f"{names[sizes.index(min(sizes))]} has embeddings for {min(sizes)} tokens, but the tokenizer "
                        f"of {names[0]} writes {len(beyond)} more, such as {ours[beyond[0]]!r}; "
                        "choose two members of one family")


def check_memory(weights: dict[tuple[str, torch.dtype], int], device: str | torch.device) -> None:
    """PairError where models with so many parameters, by name and dtype, do not fit into the device's free memory."""
    needed, free = sum(count * dtype.itemsize for (_, dtype), count in weights.items()), free_memory(device)
    if needed > free:
        models = " and ".join(f"{name} in {dtype_name(dtype)}" for name, dtype in weights)
        raise PairError(f"the weights of {models} need {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on "
                        f"{device}; take a smaller dtype, smaller models or another device")


def no_memory(source, device: str | torch.device) -> PairError:
    """The PairError for a model that ran out of memory although the estimate said that it fits."""
    return PairError(f"{source} did not fit into the memory of {device}, {free_memory(device) / 2**30:.1f} GiB are "
                     "free now; take a smaller dtype, a smaller model or another device")


def why_not(source, error: BaseException) -> PairError:
    """The PairError for a failed reading of config, tokenizer or weights, from the errors that caused it."""
    texts, reason = " ".join(map(str, _causes(error))), meaning(error)
    if not reason and "trust_remote_code" in texts:
        reason = "brings code of its own, which never runs here; choose a model that transformers supports"
    if not reason and "ignore_mismatched_sizes" in texts:
        reason = "has weights of other shapes than its config.json says; fetch or save both again"
    return PairError(f"{source} " + (reason or f"cannot be read as a model ({first_line(error)}); check that it has "
                                     "config.json, model.safetensors and tokenizer files"))


def meaning(error: BaseException) -> str:
    """The rest of a sentence that begins with the model's name; empty where the error did not come from the hub."""
    from huggingface_hub import errors

    by_kind = {
        errors.GatedRepoError: "is gated; accept its licence on the hub, then log in with `hf auth login`",
        errors.RevisionNotFoundError:
            "is no revision that the hub has of this model; leave @REVISION out, or name one that its page lists",
        (errors.RepositoryNotFoundError, errors.HFValidationError):
            "is neither a folder here nor a public model on the hub; check the spelling, and if it is private log in "
            "with `hf auth login`",
        (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError): UNREACHABLE}
    return next((reason for kinds, reason in by_kind.items()
                 if any(isinstance(cause, kinds) for cause in _causes(error))), "")


def _causes(error: BaseException | None) -> list[BaseException]:
    """An error and its causes, the last error first."""
    return [error, *_causes(error.__cause__ or error.__context__)] if error is not None else []


def first_line(error: BaseException) -> str:
    """An error's first line, as part of a sentence; its type where it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:;, ") if lines else type(error).__name__
