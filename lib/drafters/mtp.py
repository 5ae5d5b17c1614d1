"""A target's own multi-token-prediction module as its drafter, as transformers (5.23 and later) loads and runs it.

DeepSeek-V3 (arXiv 2412.19437, section 2.2): module k joins the hidden state of each position with the embedding of the
token k + 1 further on, and one decoder layer predicts the token after that. Its hidden states are the target's after
the final norm, then those of the module before. The layouts of DeepSeek and of Qwen3-Next are read.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from lib.drafters.drafter import TextDrafter, partial_draft, static
from lib.models.checks import first_line
from lib.trees.growth import Growth
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class MtpDrafter(TextDrafter):
    """Drafts with a target's modules, one after another: a token each, and in a tree the next best ones beside it.

    model: transformers' `MtpModel` of the target. Each row has its cache. With several modules, those that saw rejected
    tokens read the accepted ones again.
    """

    per_row = "texts", "caches", "states", "fresh"
    wants_hidden_states = True

    def __init__(self, model):
        self.model, self.calls, self.deepest = model, 0, model.num_mtp_layers

    @classmethod
    def of(cls, pair) -> "MtpDrafter":
        """The modules in the folder of the pair's target. ValueError where there are none that transformers reads."""
        if refused := cls.refusal(pair.target):
            raise ValueError(f"{refused}; take another drafter")
        from transformers.modeling_layers import MtpModel

        try:
            return cls(MtpModel.from_pretrained(pair.target, device_map={"": pair.target.device}).eval())
        except Exception as error:  # whatever transformers raises of weights that it does not know
            raise ValueError(f"the multi-token-prediction module of {pair.target_name} cannot be read: "
                             f"{first_line(error)}; take another drafter") from error

    @classmethod
    def refusal(cls, target) -> str:
        """Why a target has no such module; empty where its configuration and the files of its folder have one."""
        try:
            from transformers.modeling_layers import MtpModel
        except ImportError:
            return "this version of transformers reads no multi-token-prediction modules; 5.23 does"
        if not getattr(target.config.get_text_config(), "num_mtp_layers", None):
            return f"{type(target).__name__} has no multi-token-prediction module (num_mtp_layers)"
        try:
            belongs = MtpModel.get_mtp_weights_regex(target)
        except (ValueError, TypeError):
            return f"transformers knows no names of multi-token-prediction weights for {type(target).__name__}"
        files = sorted(Path(target.config.name_or_path).glob("*.safetensors"))
        names = (name for file in files for name in safe_open(file, "pt").keys())
        return "" if not files or any(map(belongs.search, names)) else (
            f"the files in {target.config.name_or_path} have no multi-token-prediction weights")

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Forgets all texts; the first `commit` brings the hidden states of the prompts."""
        from transformers.cache_utils import MtpCache

        super().start(prompts)
        self.caches = [MtpCache(config=self.model.config) for _ in prompts]
        for cache in self.caches:
            cache.activate_past_recording()
        self.states: list[Tensor] = []  # [1, T, H] of the tokens before each root
        self.fresh = [len(text) for text in self.texts]  # tokens that the first module has not read

    @torch.no_grad()
    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None,
               drafts: Sequence[Draft] | None = None) -> None:
        """Appends the kept tokens, and takes the target's last hidden states before the new roots."""
        last = target_outputs.hidden_states[-1]
        if self.states:
            for row, nodes in enumerate(accepted):
                self.states[row] = torch.cat([self.states[row], last[row : row + 1, [ROOT, *nodes]]], dim=1)
                self.fresh[row] += 1 + len(nodes)
        else:
            self.states = [last[row : row + 1, : len(text)] for row, text in enumerate(self.texts)]
        super().commit(accepted, bonus, drafts=drafts)

    @torch.no_grad()
    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """For each row the tokens of a shape along the favourites, down to the last module."""
        self.drafts = [self._filled(static(shape), row) for row in range(len(self.texts))]
        self.calls += min(shape.max_depth, self.deepest)
        return self.drafts

    def _filled(self, tree: Tree, row: int) -> Draft:
        tokens, parent = {ROOT: self.texts[row][-1]}, ROOT
        for logits in self._logits(row) if tree.budget else ():
            if not (children := tree.children(parent)):
                break
            best = logits.topk(int(tree.rank[children[-1]]) + 1).indices.tolist()
            for child in children:
                tokens[child] = best[tree.rank[child]]
            parent = children[0]
        return partial_draft(tree, tokens)

    def _logits(self, row: int) -> list[Tensor]:
        """[V] of each module, after the row's text and the favourites of the modules before."""
        count, cache, fresh = self.deepest, self.caches[row], self.fresh[row]
        if count > 1 and cache.get_seq_length():  # later modules have read tokens that the target did not keep
            cache.crop(-min(count, cache.get_seq_length()))
            fresh += min(count, len(self.texts[row]) - 1 - fresh)
        text, states = torch.tensor([self.texts[row]], device=self.states[row].device), self.states[row]
        positions = torch.arange(text.shape[1], device=text.device)[None]
        _, logits, _ = self.model(input_ids=text[:, -fresh:], last_hidden_states=states[:, -fresh:],
                                  position_ids=positions[:, -fresh:], attention_mask=None, mtp_cache=cache)
        self.fresh[row] = 0
        return list(logits[0])
