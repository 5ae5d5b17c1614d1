"""Heads and small draft models of a frozen target: `python -m lib training heads --target T --kinds K,...`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lib.drafters import heads, vocabulary
from lib.drafters.heads.layers import Head
from lib.training import loop, own_text

PLAN = loop.TrainingPlan(steps=1000, rows=8, length=512, learning_rate=3e-3, decay=0.9, seed=11)
MASK = 16  # the mask token of a new head: one of SmolLM2's special tokens, which texts do not have

# Settings of a new head besides sizes.
OPTIONS = {"medusa": {"medusa_num_heads": 4, "medusa_num_layers": 1}, "eagle3": {},
           "dflash": {"block_size": 7, "shifted": False, "qk_norm": True},
           "dspark": {"block_size": 6, "shifted": True, "qk_norm": False, "markov_rank": 64, "learned_places": True}}

NANO = "nano"  # a small Llama that learns its target's distribution (Zhou et al. 2024, DistillSpec)
NANO_PLAN = loop.TrainingPlan(steps=1600, rows=16, length=1024, learning_rate=1e-2, decay=0.3, seed=21)
# With tied embeddings of 49,152 tokens 15.9 MiB in bfloat16, of which the embeddings are 12.
NANO_SIZES = {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 1088, "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 32}
EMBEDDED = 0.1  # root mean square of its first embeddings: well above one step of their optimiser


def make(pair, kinds: Sequence[str], folder: Path, steps: int | None = None, temperature: float = 1.0) -> None:
    """Trains heads, which draft the target's most frequent tokens, or a draft model (NANO) on text that the target
    wrote, into folder/heads/TARGET/KIND or folder/TARGET/nano. ValueError for an unknown kind, and without such text.
    """
    if unknown := {*kinds} - {NANO, *heads.KINDS}:
        raise ValueError(f"there is no kind {min(unknown)!r}; choose among {', '.join([*heads.KINDS, NANO])}")
    for kind in kinds:
        plan = NANO_PLAN if kind == NANO else PLAN
        plan = replace(plan, steps=plan.steps if steps is None else steps, temperature=temperature)
        if kind != NANO:
            learn(pair, kind, plan, folder / "heads" / pair.target_name / kind)
            continue
        torch.manual_seed(plan.seed)
        model, into = student(pair.target), folder / pair.target_name / kind
        loop.train(model, pair.target, slice(None), *own_text.lessons(pair, plan.length), plan, into)
        model.bfloat16().save_pretrained(into)


def learn(pair, kind: str, plan: loop.TrainingPlan, into: Path, drafted: int = vocabulary.REDUCED,
          options: Mapping[str, object] | None = None) -> Head:
    """Trains a new head, of so many of the target's most frequent tokens, and saves it; options: as for `new`."""
    tokens = vocabulary.most_frequent(own_text.load(pair.target_name).values())[:drafted].sort().values
    torch.manual_seed(plan.seed)
    head = new(kind, pair.target, tokens, options)
    loop.train(head, pair.target, tokens, *own_text.lessons(pair, plan.length), plan, into)
    heads.save(head, into)
    return head


def student(target) -> LlamaForCausalLM:
    """A new Llama with the target's vocabulary, window and rotation. Its embedding, which is its output layer too,
    starts from the principal components of the target's.
    """
    config, width = target.config.get_text_config(), NANO_SIZES["hidden_size"]
    shared = {name: getattr(config, name) for name in (
        "vocab_size", "max_position_embeddings", "rope_parameters", "rms_norm_eps", "bos_token_id", "eos_token_id",
        "pad_token_id")}
    model = LlamaForCausalLM(LlamaConfig(**NANO_SIZES, **shared, tie_word_embeddings=True))
    with torch.no_grad():
        weight = target.get_input_embeddings().weight.float().cpu()
        components, scales, _ = torch.linalg.svd(weight - weight.mean(0), full_matrices=False)
        start = components[:, :width] * scales[:width]
        model.model.embed_tokens.weight.copy_(EMBEDDED * start / start.square().mean().sqrt())
        model.model.norm.weight.fill_(1 / (EMBEDDED * width**0.5))  # logits of size 1
    return model.to(target.device)


def new(kind: str, target, drafted: Tensor, options: Mapping[str, object] | None = None) -> Head:
    """A new head of a kind that drafts these tokens int64[K] of the target; options: instead of those of OPTIONS."""
    head = heads.KINDS[kind](settings(kind, target.config, len(drafted), options)).to(target.device)
    head.tokens.copy_(drafted)
    return head


def settings(kind: str, target_config, draft_vocab_size: int | None = None,
             options: Mapping[str, object] | None = None) -> LlamaConfig:
    """A new head's configuration, narrower than a layer of its target: two thirds of the query heads over one key head,
    and a feed-forward layer of the hidden size. draft_vocab_size: how many of the target's tokens it drafts, or all.
    """
    config = target_config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return LlamaConfig(
        hidden_size=config.hidden_size, vocab_size=config.vocab_size, head_dim=width,
        num_attention_heads=max(1, config.num_attention_heads * 2 // 3), num_key_value_heads=1,
        intermediate_size=config.hidden_size, max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6), kind=kind, mask_token_id=min(MASK, config.vocab_size - 1),
        feature_layers=feature_layers(config.num_hidden_layers), draft_vocab_size=draft_vocab_size,
        **{"num_hidden_layers": 1, **(OPTIONS[kind] if options is None else options)})


def feature_layers(layers: int) -> list[int]:
    """The hidden states that a new head reads, of a target with so many layers: the inputs of layers 2, L/2 and L - 3,
    as in engines. The last is none of them: transformers gives it after the final norm, engines before it.
    """
    return [2, layers // 2, layers - 3] if layers > 6 else list(range(layers))[-3:]
