"""The members of the shipped family: their sizes and training, and the steps from text to a model folder."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Sequence

import pandas as pd
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lib.training import data, loop
from lib.training.corpus import mixture
from lib.models.load import Pair, load_pair

WINDOW = 512


@dataclass(frozen=True)
class Member:
    """One model: its sizes, its training schedule, a second schedule that continues from the end of the first, if any,
    and its teacher, if it is distilled.
    """

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    plan: loop.Plan
    further: loop.Plan | None = None
    teacher: str | None = None

    def config(self) -> LlamaConfig:
        """The transformers configuration."""
        return LlamaConfig(vocab_size=data.VOCABULARY, hidden_size=self.hidden, num_hidden_layers=self.layers,
                           intermediate_size=self.feed_forward, num_attention_heads=self.heads,
                           num_key_value_heads=self.kv_heads, head_dim=self.head_dim, tie_word_embeddings=True,
                           max_position_embeddings=WINDOW, bos_token_id=0, eos_token_id=0, rope_theta=10_000.0,
                           use_cache=True)


def _one_layer(teacher: str | None, steps: int) -> Member:
    return Member(128, 1, 256, 4, 2, 32, loop.Plan(steps, 16, WINDOW, 1e-2, seed=3), teacher=teacher)


FAMILY = {
    "base": Member(384, 5, 1024, 6, 2, 64, loop.Plan(860, 32, WINDOW, 8e-3, seed=1),
                   further=loop.Plan(980, 32, WINDOW, 8e-3, seed=4)),
    "small": Member(192, 3, 512, 3, 1, 64, loop.Plan(400, 32, WINDOW, 1e-2, seed=2)),
    "tiny": _one_layer(None, 500),
    "tiny-base": _one_layer("base", 500),
    "tiny-small": _one_layer("small", 300),
}


def make(name: str, folder: Path, *, member: Member | None = None, device: str = "cpu") -> LlamaForCausalLM:
    """Trains a member (plain, or by distillation from its trained teacher under `folder`) and saves it in bfloat16.

    member: trained under that name instead of the family's member. A second schedule starts from the final weights of
    the first, with a warm-up and new momenta.
    """
    member = member or FAMILY[name]
    streams = data.prepare(folder)
    torch.manual_seed(member.plan.seed)  # for the initial weights; each window is a function of seed and step
    model = LlamaForCausalLM(member.config()).to(device)
    loss, texts, shares = loop.plain_loss, streams.train, mixture.SHARES
    if member.teacher:
        teacher = frozen_pair(member.teacher, folder, device).target
        loss = loop.distilling_loss(teacher)
        texts, shares = data.with_own_text(teacher, member.teacher, streams, folder, member.plan)
    for part, plan in ((name, member.plan), (f"{name}-further", member.further)):
        if plan:
            loop.train(
                model,
                partial(data.windows, texts, shares, plan.rows, plan.length + 1, plan.seed),
                plan,
                loss,
                folder / "checkpoints" / part,
                report=lambda record: print(name, *(f"{key}={value:.4g}" for key, value in record.items()), flush=True),
            )
    save(model, folder / name, Tokenizer.from_file(str(folder / "tokenizer.json")))
    return model


def frozen_pair(name: str, folder: Path, device: str) -> Pair:
    """A target in float32 with tree attention, without gradients: trained under `folder`, or else by its name.

    PairError if there is none, or if it cannot be read.
    """
    trained = (folder / name / "model.safetensors").exists()
    where = str(folder / name) if trained else name
    pair = load_pair(where, dtype="float32", device=device)
    pair.target.requires_grad_(False)
    return pair


def save(model: LlamaForCausalLM, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes the ordinary transformers layout: config, bfloat16 safetensors, and the family's tokenizer if given."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    if tokenizer is None:
        return
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=data.END, eos_token=data.END, pad_token=data.END, model_max_length=WINDOW
    ).save_pretrained(folder)
    written = str(folder / "tokenizer.json")
    Tokenizer.from_file(written).save(written, pretty=False)  # without white space, over half of the file


def losses(names: Sequence[str], folder: Path, windows: int = 48) -> pd.DataFrame:
    """Held-out loss of members under `folder` by kind of text: member, kind, nats_a_token, tokens (of the mean)."""
    streams, rows = data.prepare(folder), []
    for name in names:
        model = LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32).eval()
        rows += [dict(member=name, kind=kind,
                      nats_a_token=round(loop.held_out_loss(model, streams.held_out[kind], WINDOW, windows), 4),
                      tokens=WINDOW * windows)
                 for kind in mixture.KINDS]
    return pd.DataFrame(rows)
