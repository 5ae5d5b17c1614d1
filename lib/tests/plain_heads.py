"""The outputs of heads, computed plainly from tensors as authors' layouts name them: no module, cache or batch."""

import torch
from torch import Tensor
from torch.nn.functional import silu

DIM, EPSILON = 8, 1e-6  # of small heads


class PlainHead:
    """A head on a target.

    tensors: of a file, by their names. features: the hidden states that it reads. tokens: those that it drafts, None
    for all. normed_residual: of EAGLE-3. block_size, mask: the number of positions, and the mask token, of a block.
    """

    def __init__(self, kind, target, tensors, *, features, tokens=None, normed_residual=False, block_size=0, mask=None):
        self.kind, self.target, self.features, self.normed_residual = kind, target, features, normed_residual
        self.tensors = {name.removesuffix(".weight"): tensor.to(target.dtype) for name, tensor in tensors.items()}
        self.tokens = list(range(target.config.vocab_size)) if tokens is None else tokens.tolist()
        self.block_size, self.mask = block_size, mask

    @classmethod
    def of(cls, head, target) -> "PlainHead":
        """That of a module."""
        config = head.config
        return cls(config.kind, target, head.state_dict(), features=config.feature_layers, tokens=head.tokens,
                   normed_residual=getattr(config, "norm_before_residual", False),
                   block_size=getattr(config, "block_size", 0), mask=config.mask_token_id)

    def __call__(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[name].T + self.tensors.get(f"{name}.bias", 0)

    def normed(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * self.tensors[name]

    def heads(self, x: Tensor, name: str) -> Tensor:
        """[n, heads, DIM] of x [n, ...], with rotary positions but for values."""
        heads = self(x, f"{name}_proj").view(len(x), -1, DIM)
        heads = self.normed(heads, f"{name}_norm") if f"{name}_norm" in self.tensors else heads
        if name.endswith("v"):
            return heads
        angles = torch.arange(len(x))[:, None, None] * (1.0 / 10000.0 ** (torch.arange(0, DIM, 2) / DIM))
        (first, second), cos, sin = heads.chunk(2, dim=-1), angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def layer(self, x: Tensor, read: Tensor, sees: Tensor, name: str) -> Tensor:
        """x [n, H], whose attention reads [m, ...]; the last n of these have queries that attend to sees bool[n, m]."""
        query, key, value = (self.heads(read, f"{name}.self_attn.{part}") for part in "qkv")
        out, group = [], query.shape[1] // key.shape[1]
        for head in range(query.shape[1]):
            scores = (query[-len(x) :, head] @ key[:, head // group].T / DIM**0.5).masked_fill(~sees, float("-inf"))
            out.append(scores.softmax(-1) @ value[:, head // group])
        x = x + self(torch.cat(out, dim=-1), f"{name}.self_attn.o_proj")
        normed = self.normed(x, f"{name}.post_attention_layernorm")
        gate, up = (self(normed, f"{name}.mlp.{part}_proj") for part in ("gate", "up"))
        return x + self(silu(gate) * up, f"{name}.mlp.down_proj")

    def state(self, text: list[int], path: list[int]) -> Tensor | None:
        """The input [H] of the output layer after a committed text and a drafted path; None beyond the head's depth."""
        hidden = self.target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
        if self.kind == "medusa":
            x, block = hidden[-1][0, -1], 0
            while f"{len(path)}.{block}.linear" in self.tensors:
                x, block = x + silu(self(x, f"{len(path)}.{block}.linear")), block + 1
            return x if block else None
        features = self(torch.cat([hidden[layer][0] for layer in self.features], dim=-1), "fc")
        table = self.tensors.get("embed_tokens", self.target.get_input_embeddings().weight)
        if self.kind == "eagle3":
            for count in range(len(path) + 1):
                tokens, normed = [*text[1:], *path[:count]], self.normed(features, "midlayer.hidden_norm")
                read = torch.cat([self.normed(table[tokens], "midlayer.input_layernorm"), normed], dim=-1)
                sees = torch.ones(len(tokens), len(tokens)).tril().bool()
                x = self.layer(normed if self.normed_residual else features, read, sees, "midlayer")
                features = torch.cat([features, x[-1:]])
            return self.normed(x[-1], "norm")
        position, context, layer = len(path) + (self.kind == "dflash"), self.normed(features, "hidden_norm"), 0
        if position >= self.block_size:
            return None
        if (learned := self.tensors.get("place_embeddings")) is None:
            x = table[[text[-1]] + [self.mask] * (self.block_size - 1)]
        else:
            x = torch.cat([table[text[-1:]], learned]) + context[-1]
        while f"layers.{layer}.input_layernorm" in self.tensors:
            read = torch.cat([context, self.normed(x, f"layers.{layer}.input_layernorm")])
            x, layer = self.layer(x, read, torch.ones(len(x), len(read)).bool(), f"layers.{layer}"), layer + 1
        return self.normed(x, "norm")[position]

    def logits(self, text: list[int], path: list[int]) -> Tensor | None:
        """float[V] after a committed text and a drafted path, minus infinity for tokens that the head does not draft;
        None beyond its depth.
        """
        if (state := self.state(text, path)) is None:
            return None
        logits = torch.full((self.target.config.vocab_size,), float("-inf"), dtype=state.dtype)
        output = self.tensors.get("lm_head", self.tensors.get(f"{len(path)}.2"))  # of Medusa's first version
        logits[self.tokens] = state @ (self.target.lm_head.weight[self.tokens] if output is None else output).T
        if (first := self.tensors.get("markov_head.markov_w1")) is not None:
            before = [*text, *path][-1]
            row = before if len(first) == len(logits) else (*self.tokens, before).index(before)
            logits[self.tokens] += self(first[row], "markov_head.markov_w2")
        return logits
