"""The rounds explorer: choose a pair, prompt, drafter, tree and rule, and step through what every round accepts; a
second drafter and tree may decode the same prompt beside it.
"""

from collections.abc import Sequence
from functools import cache
from html import escape
from math import isnan, nan
from threading import RLock

import ipywidgets
import torch
from torch import Tensor

from lib.decoding.checks import checkable
from lib.decoding.loop import generate
from lib.decoding.records import Round
from lib.decoding.walkthrough import DRAFT, PROMPT, TARGET, Step, walk
from lib.drafters.drafter import NoDrafter
from lib.drafters.registry import kinds_for, make
from lib.lab.theme import BLACK, ROLES
from lib.models import dialogue
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.trees import named
from lib.trees.picture import round_svg, shaded, visible
from lib.verify.rules import RULES

PRESETS = ("kary:2@14", "chain:5", "star:8", "independent:3x4", "comb:3@12", "expansion:2,2,1", "eagle2:4,4@14",
           "dyspec@14")
SAMPLED = tuple(name for name, rule in RULES.items() if rule.sampled and rule.lossless)  # naive sampling first
MOST_NODES, MOST_TOKENS, HOTTEST = 128, 1024, 5.0  # more nodes would not be readable
WRITERS = {DRAFT: ROLES["accepted"], TARGET: ROLES["bonus"]}  # colours of the running text; the prompt has none
PROMPT_TAIL = 400  # characters of the prompt before the running text
NONE = "none"  # in the place of a second tree
HIGH = 40  # pixels of the highest bar of a timeline


class RoundsExplorer:
    """Controls for the decoding and for the round that is shown, above the running text and the round's tree.

    pairs: those to choose from, which share the tokenizer of `prompts`. A typed prompt replaces the chosen one; it is
    a user's turn where the tokenizer has a chat template, else a text to continue. shape: a tree or a growth rule;
    drafter: a spec of `drafters.make`; acceptance_by_rank: float[R], from which "optimal" is grown.

    Display `view`. Errors appear in `message`; the last decoding that worked stays below. JupyterLab calls a widget's
    callbacks in several threads: one of them decodes at a time, and of those that wait only the newest setting's.
    """

    def __init__(self, pairs: Sequence[Pair], prompts: PromptSet, *, shape: str = "kary:2@14", drafter: str = "",
                 new_tokens: int = 32, acceptance_by_rank: Sequence[float] | None = None, seed: int = 0):
        self.pairs, self.prompts = {pair.name: pair for pair in pairs}, prompts
        self.acceptance, self.seed, self.lock, self.newest = acceptance_by_rank, seed, RLock(), None
        self.steps, self.other, self.plain_speed = [], [], cache(self._plain_speed)
        self._make_view(shape, drafter, new_tokens)
        self.prompt.observe(lambda change: self.typed.set_trait("value", ""), names="value")
        for control in (self.pair, self.drafter, self.prompt, self.typed, self.shape, self.rule, self.temperature,
                        self.new_tokens, self.other_drafter, self.other_shape):
            control.observe(self._decode, names="value")
        self.round.observe(self._show, names="value")
        self._decode()

    def _make_view(self, shape: str, drafter: str, new_tokens: int) -> None:
        """Controls for the decoding; below these the error message, then the round, hidden until there is one."""
        first, late = next(iter(self.pairs.values())), {"continuous_update": False}  # not at each key
        wide = {"width": "100%", "max_width": "600px"}
        shapes, offered = checkable(first.target, [shape, *PRESETS]), tuple(kinds_for(first))
        begins = [first.tokenizer.decode(ids[:40], skip_special_tokens=True) for ids in self.prompts.ids]
        listed = [(f"{kind}, {name}: {' '.join(begin.split())[:70]}…", index) for index, (kind, name, begin)
                  in enumerate(zip(self.prompts.kinds, self.prompts.names, begins))]
        self.pair = ipywidgets.Dropdown(options=list(self.pairs), description="pair")
        self.drafter, self.shape, self.other_drafter, self.other_shape = (
            ipywidgets.Combobox(value=options[0], options=options, description=label, **late) for label, options in (
                ("drafter", offered), ("tree", shapes), ("beside", offered), ("its tree", (NONE, *shapes))))
        if drafter in offered:
            self.drafter.value = self.other_drafter.value = drafter
        self.temperature = ipywidgets.BoundedFloatText(0.0, min=0.0, max=HOTTEST, step=0.1, description="temperature",
                                                       style={"description_width": "initial"}, **late)
        self.rule = ipywidgets.Dropdown(options=SAMPLED, description="sampled by")
        self.new_tokens = ipywidgets.BoundedIntText(new_tokens, 2, MOST_TOKENS, description="new tokens", **late)
        self.prompt = ipywidgets.Dropdown(options=listed, description="prompt", layout=wide)
        self.typed = ipywidgets.Textarea(placeholder="Or type a prompt of your own, then click elsewhere.", rows=2,
                                         layout=wide, **late)
        self.round = ipywidgets.IntSlider(1, 1, 1, description="round", layout=wide)
        self.message, self.timeline, self.numbers, self.text, self.picture = (ipywidgets.HTML() for _ in range(5))
        scrolled = ipywidgets.Box([self.picture], layout={"overflow": "auto", "max_height": "640px"})
        self.shown = ipywidgets.VBox([self.timeline, self.round, self.numbers, self.text, ipywidgets.HTML(legend()),
                                      scrolled], layout={"display": "none"})
        rows = [(self.pair, self.drafter, self.shape), (self.other_drafter, self.other_shape),
                (self.temperature, self.rule, self.new_tokens), (self.prompt, self.typed)]
        boxes = [ipywidgets.HBox(row, layout={"flex_flow": "row wrap"}) for row in rows]
        self.view = ipywidgets.VBox([*boxes, self.message, self.shown])

    def _walk(self, pair: Pair, spec: str, shape: str, prompt: Tensor) -> list[Step]:
        """The rounds of a drafter, which samples children as the rule needs if it can, and a tree. ValueError for an
        unknown shape, or one too large to read.
        """
        temperature, drafter = self.temperature.value, make(spec, pair)
        rule = self.rule.value if temperature else "greedy"
        if RULES[rule].made_for != "top_k" and hasattr(drafter, "proposal"):
            drafter = make(spec, pair, {"proposal": RULES[rule].made_for, "temperature": temperature})
        tree = named(shape, acceptance=self.acceptance)
        if tree.budget > MOST_NODES:
            raise ValueError(f"shape {shape!r} has {tree.budget} nodes: give one of at most {MOST_NODES}, to stay "
                             "readable")
        return walk(pair, drafter, prompt, tree, rule=rule, temperature=temperature, new_tokens=self.new_tokens.value,
                    generator=torch.Generator().manual_seed(self.seed))

    def _plain_speed(self, pair_name: str, prompt: tuple[int, ...], new_tokens: int) -> float:
        """Tokens per second of plain decoding of the prompt, without prefill."""
        pair = self.pairs[pair_name]
        done = generate(pair.target, NoDrafter(), torch.tensor([prompt]), shape="chain:0", max_new_tokens=new_tokens,
                        eos_token_id=pair.eos_token_ids)
        return tokens_per_second(done.rounds)

    def _decode(self, change=None) -> None:
        """Decode with the settings of the controls when no other thread does, unless they have changed again."""
        self.newest = setting = object()
        with self.lock:
            if setting is self.newest:
                self._decode_now()

    def _decode_now(self) -> None:
        """Decode with the settings of the controls, and show the first round; after an error the last one stays."""
        self.message.value = _paragraph("decoding …")
        try:
            pair, prompt = self.pairs[self.pair.value], self.prompts.ids[self.prompt.value]
            if self.typed.value.strip():
                prompt = dialogue.tokenise(dialogue.of_user(self.typed.value), pair.tokenizer)
            self.drafter.options = self.other_drafter.options = tuple(kinds_for(pair))
            steps, other = ([] if shape == NONE else self._walk(pair, spec, shape, prompt) for spec, shape in (
                (self.drafter.value, self.shape.value), (self.other_drafter.value, self.other_shape.value)))
            if not steps:
                raise ValueError("the target ends the text with its first token, before any round: take another prompt")
            self.plain = self.plain_speed(pair.name, tuple(prompt.tolist()), self.new_tokens.value)
        except Exception as error:  # a callback's traceback would only appear in a log
            text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            stays = ". Below is still the last decoding that worked." if self.steps else ""
            self.message.value = _paragraph(escape(text.replace("max_new_tokens", "new tokens") + stays), "#B00020")
            return
        self.steps, self.other = steps, other
        self.message.value, self.shown.layout.display = "", None
        self.round.value = 1
        self.round.max = len(steps)
        self._show()

    def _show(self, change=None) -> None:
        """Picture, numbers and running text of the chosen round."""
        with self.lock:
            step = self.steps[self.round.value - 1]
            self.picture.value = of_step(step)
            self.timeline.value = timeline(self.steps, self.other, step.number)
            self.numbers.value = _paragraph(describe_round(step, self.plain))
            self.text.value = running_text(step)


def _paragraph(html: str, colour: str = "inherit") -> str:
    """A sentence that may take two lines, closer together than a widget's own."""
    return f'<div style="line-height:1.5;color:{colour}">{html}</div>'


# ---------------------------------------------------------------------------------------------- a round as HTML and SVG


def running_text(step: Step) -> str:
    """The text so far as HTML: the prompt's end in grey, draft tokens and the target's own each on their colour; this
    round's tokens are underlined. `pre` keeps white space and prevents MathJax from reading dollar signs.
    """
    pieces = []
    for index, (text, writer) in enumerate(step.text, step.fresh - len(step.text)):
        if writer == PROMPT:
            cut = "…" if len(text) > PROMPT_TAIL else ""
            pieces.append(f'<span style="color:#777">{cut}{escape(text[-PROMPT_TAIL:])}</span>')
            continue
        colour, alpha, line = (WRITERS[writer], "80", 2) if index >= 0 else (WRITERS[writer], "38", 0)
        inner = escape(text).replace("\n", '<span style="opacity:.5">↵</span>\n')
        pieces.append(f'<span title="{writer}" style="background:{colour}{alpha};border-radius:3px;'
                      f'box-shadow:inset -1px 0 0 #fff;border-bottom:{line}px solid {colour}">{inner}</span>')
    return ('<div style="display:flex;flex-direction:column-reverse;max-height:15em;overflow:auto;background:#fff;'
            'border:1px solid #ddd;padding:8px 10px">'  # reversed: it stays scrolled to its end
            '<pre style="flex:none;white-space:pre-wrap;overflow-wrap:anywhere;margin:0;padding:0;background:#fff;'
            f'color:#222;font:13px/1.65 monospace">{"".join(pieces)}</pre></div>')


def legend() -> str:
    """The meaning of the colours, numbers and signs of tree and text, as HTML."""
    meaning = {"root": "root, the last committed token", "accepted": "drafted and accepted",
               "rejected": "drafted, rejected", "bonus": "the target's own token"}
    colours = (f'<span style="color:{ROLES[role]}">■</span>&nbsp;{text}&emsp;' for role, text in meaning.items())
    return _paragraph("".join(colours) + "%: a node's probability after its parent, the drafter's / the target's; "
                      "· a space, ↵ a line's end")


def describe_round(step: Step, plain: float) -> str:
    """The round and the running totals in a sentence each, as HTML. plain: tokens per second of plain decoding."""
    totals, speed = step.so_far, tokens_per_second(step.so_far.rounds)
    pace = f", <b>{speed:.0f}</b> tokens per second after the first round ({plain:.0f} plainly)"
    pace = "" if isnan(speed + plain) else pace
    end = f"; the text ends after the first {step.fresh} of these" if step.fresh <= len(step.accepted) else ""
    return (f"Round {step.number} of {step.rounds}: <b>{len(step.accepted)}</b> of {step.tree.budget} draft tokens "
            f"accepted, then the target's own{end}. So far: acceptance rate <b>{totals.acceptance_rate:.2f}</b>, "
            f"acceptance length <b>{totals.acceptance_length:.2f}</b> tokens per round{pace}.")


def tokens_per_second(rounds: Sequence[Round]) -> float:
    """Of the rounds after the first, in which caches are cold; NaN without any."""
    later = rounds[1:]
    return sum(1 + one.accepted for one in later) / sum(one.seconds for one in later) if later else nan


def timeline(steps: Sequence[Step], other: Sequence[Step], current: int) -> str:
    """HTML of a timeline: each round is as wide as its tokens, and as high as its accepted draft tokens."""
    lanes, drawn = {"this setting": steps} | ({"beside it": other} if other else {}), []
    longest = max(lane[-1].written for lane in lanes.values())
    most = max(1, *(len(step.accepted) for lane in lanes.values() for step in lane))
    for name, lane in lanes.items():
        for step in lane:
            share = len(step.accepted) / most
            edge = f";outline:2px solid {BLACK}" if lane is steps and step.number == current else ""
            drawn.append(f'<div title="round {step.number}: {len(step.accepted)} of {step.tree.budget} draft tokens '
                         f'accepted" style="display:inline-block;margin-right:1px;background:{shaded(share)};height:'
                         f'{4 + HIGH * share:.0f}px;width:calc({100 * (len(step.accepted) + 1) / longest:.2f}% - 1px)'
                         f'{edge}"></div>')
        drawn.append(f"<div>{name}: {lane[-1].written} tokens in {len(lane)} rounds and "
                     f"{1000 * lane[-1].seconds:.0f} ms</div>")
    return f'<div style="font-size:11px;line-height:1.5;white-space:nowrap">{"".join(drawn)}</div>'


def of_step(step: Step) -> str:
    """The round's tree with its tokens, and the probabilities that are known."""
    chances = {"drafter": step.probabilities, "target": step.target_probabilities}
    return round_svg(step.parents, [visible(token) for token in (*step.tokens, step.bonus)], step.roles,
                     {who: [*row, nan] for who, row in chances.items() if row is not None})
