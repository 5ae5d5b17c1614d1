"""The rounds explorer: choose a pair, prompt, drafter, tree and rule, and step through what every round accepts; a
second drafter and tree may decode the same prompt beside it.
"""

from collections.abc import Sequence
from html import escape
from math import isnan, nan
from threading import Lock, RLock

import anywidget
import ipywidgets
import torch
import traitlets
from matplotlib.colors import to_rgb
from torch import Tensor

from lib.decoding.loop import generate
from lib.decoding.checks import checkable
from lib.decoding.walkthrough import DRAFT, PROMPT, TARGET, Step, walk
from lib.drafters.drafter import NoDrafter
from lib.drafters.registry import kinds_for, make
from lib.lab.theme import BLACK, ROLES
from lib.models import dialogue
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.trees import named
from lib.trees.growth import Growth
from lib.trees.picture import round_svg, shaded, visible
from lib.trees.tree import Tree
from lib.verify.rules import RULES

TYPED = "your own"  # the kind of text under which a prompt is typed
PRESETS = ("kary:2@14", "chain:5", "star:8", "independent:3x4", "comb:3@12", "expansion:2,2,1",
           "expansion:1,1,3,1,1,1,1,1", "eagle2:4,4@14", "dyspec@14")
GREEDY, NAIVE, TOP_K = "greedy", "naive", "top_k"
MOST_NODES, MOST_TOKENS, HOTTEST = 128, 1024, 5.0  # more nodes would not be readable
WRITERS = {DRAFT: ROLES["accepted"], TARGET: ROLES["bonus"]}  # colours of the running text; the prompt has none
PROMPT_TAIL, PROMPT_LINES = 400, 6  # characters and lines of the prompt before the running text
NONE = "none"  # in the place of a second tree
WIDE, LANE = 900, 46  # pixels of a timeline, and of the bars of one setting


class Timeline(anywidget.AnyWidget):
    """The rounds as bars; a click on one goes there."""

    _esm = """export default { render({ model, el }) {
      const show = () => { el.innerHTML = model.get("svg"); };
      el.onclick = ({ target }) => {
        const bar = target.closest("[data-round]");
        if (bar) { model.set("round", Number(bar.dataset.round)); model.save_changes(); }
      };
      model.on("change:svg", show); show();
    } };"""
    svg = traitlets.Unicode().tag(sync=True)
    round = traitlets.Int(1).tag(sync=True)


class RoundsExplorer:
    """Controls for the decoding and for the round that is shown, above the running text and the round's tree.

    pairs: those to choose from, which share the tokenizer of `prompts`. A typed prompt is a user's turn where the
    tokenizer has a chat template, else a text to continue.
    The shape may be a growth rule, whose tree differs from round to round.
    acceptance_by_rank: float[R], from which "sparse" and "optimal" are grown; without it these names are refused.
    A drafter is a spec of `drafters.make`; those of the list suit the pair, and it opens on `drafter` if that is one.
    Temperature 0 is greedy. Above it one of the lossless rules decides, with the children for which it was made; the
    same settings give the same rounds.
    Display `view`. Errors appear in `message`; the last decoding that worked stays below.

    JupyterLab calls a widget's callbacks in several threads. One of them decodes at a time; of those that wait
    meanwhile only the one of the newest setting decodes.
    """

    def __init__(self, pairs: Sequence[Pair], prompts: PromptSet, *, shape: str = "kary:2@14", drafter: str = "",
                 temperature: float = 0.0, new_tokens: int = 32,
                 acceptance_by_rank: Sequence[float] | None = None, seed: int = 0):
        self.pairs, self.prompts = {pair.name: pair for pair in pairs}, prompts
        self.acceptance, self.seed = acceptance_by_rank, seed
        self.steps: list[Step] = []
        self.other: list[Step] = []
        self.plain: dict[tuple, float] = {}
        self.changes = 0  # settings so far
        self.decoding, self.showing = Lock(), RLock()
        self._make_view(shape, drafter, temperature, new_tokens)
        self.kind.observe(self._offer_prompts, names="value")
        self.pair.observe(self._offer_drafters, names="value")
        self.temperature.observe(self._offer_rules, names="value")
        for control in (self.pair, self.drafter, self.prompt, self.typed, self.shape, self.rule, self.temperature,
                        self.new_tokens, self.other_drafter, self.other_shape):
            control.observe(self._decode, names="value")
        self.round.observe(self._show, names="value")
        self.timeline.observe(lambda change: setattr(self.round, "value", change["new"]), names="round")
        self.back.on_click(lambda _: self._move(-1))
        self.forward.on_click(lambda _: self._move(1))
        self._decode()

    @property
    def step(self) -> Step:
        """The round that is shown."""
        return self.steps[self.round.value - 1]

    def _make_view(self, shape: str, drafter: str, temperature: float, new_tokens: int) -> None:
        """Controls for pair, prompt, shape, temperature, length and the round; below these the error message, then the
        round, which is hidden until there is one.
        """
        kinds = list(dict.fromkeys(self.prompts.kinds))
        once = {"continuous_update": False}  # decode when a field is left or Enter is pressed, not at each key
        self.pair = ipywidgets.Dropdown(options=list(self.pairs), description="pair", layout=_wide("240px"))
        self.kind = ipywidgets.Dropdown(options=[*kinds, TYPED], description="text")
        self.prompt = ipywidgets.Dropdown(options=self._names(kinds[0]), description="prompt", layout=_wide("600px"))
        self.typed = ipywidgets.Textarea(placeholder="Type a prompt, then click elsewhere.", description="prompt",
                                         rows=3, layout=_wide("600px", display="none"), **once)
        first = next(iter(self.pairs.values()))
        shape, = checkable(first.target, [shape])
        self.shape = ipywidgets.Combobox(value=shape, options=checkable(first.target, PRESETS), description="tree",
                                         **once)
        offered = drafters_of(first)
        self.drafter = ipywidgets.Combobox(value=drafter if drafter in offered else offered[0], options=offered,
                                            description="drafter", **once)
        self.other_drafter = ipywidgets.Combobox(value=self.drafter.value, options=offered, description="beside",
                                                 **once)
        self.other_shape = ipywidgets.Combobox(value=NONE, options=(NONE, *self.shape.options), description="its tree",
                                               **once)
        self.timeline = Timeline()
        self.temperature = ipywidgets.FloatText(temperature, step=0.1, description="temperature",
                                                style={"description_width": "initial"}, layout=_wide("170px"), **once)
        self.rule = ipywidgets.Dropdown(options=rules_at(temperature), description="rule", layout=_wide("260px"))
        self.new_tokens = ipywidgets.IntText(new_tokens, description="new tokens", layout=_wide("190px"), **once)
        self.round = ipywidgets.IntSlider(1, 1, 1, description="round", layout=_wide("520px"))
        self.back = ipywidgets.Button(description="back", icon="chevron-left", layout=_wide("90px"))
        self.forward = ipywidgets.Button(description="forward", icon="chevron-right", button_style="primary",
                                         layout=_wide("110px"))

        self.message, self.numbers, self.text, self.picture = (ipywidgets.HTML() for _ in range(4))
        wrapped = ipywidgets.Layout(flex_flow="row wrap")
        scrolled = ipywidgets.Box([self.picture], layout=ipywidgets.Layout(overflow="auto", max_width="100%",
                                                                           max_height="640px"))
        self.shown = ipywidgets.VBox([
            self.timeline, ipywidgets.HBox([self.round, self.back, self.forward]), self.numbers, self.text,
            ipywidgets.HTML(legend()), scrolled], layout=ipywidgets.Layout(display="none"))
        self.view = ipywidgets.VBox([
            ipywidgets.HBox([self.pair, self.drafter, self.shape], layout=wrapped),
            ipywidgets.HBox([self.other_drafter, self.other_shape], layout=wrapped),
            ipywidgets.HBox([self.temperature, self.rule, self.new_tokens], layout=wrapped),
            ipywidgets.HBox([self.kind, self.prompt, self.typed], layout=wrapped), self.message, self.shown])

    def _names(self, kind: str) -> list[tuple[str, int]]:
        """The prompts of a kind: name and beginning, and index in the set."""
        tokenizer = next(iter(self.pairs.values())).tokenizer
        chosen = [place for place, its_kind in enumerate(self.prompts.kinds) if its_kind == kind]
        begins = [tokenizer.decode(self.prompts.ids[place][:40], skip_special_tokens=True) for place in chosen]
        return [(f"{self.prompts.names[place]}: {' '.join(begin.split())[:70]}…", place)
                for place, begin in zip(chosen, begins)]

    def _offer_prompts(self, change=None) -> None:
        """Prompts of the chosen kind, or a field to type one in."""
        typing = self.kind.value == TYPED
        self.typed.layout.display, self.prompt.layout.display = (None, "none") if typing else ("none", None)
        if typing and not self.typed.value.strip():
            self.message.value = _note("Type a prompt; below is still the last one.")
        elif typing:
            self._decode()
        else:
            self.prompt.value = None  # so that the choice below is a change, and decodes once
            self.prompt.options = self._names(self.kind.value)
            self.prompt.index = 0

    def _offer_drafters(self, change=None) -> None:
        """The drafters of the chosen pair; another one is taken where the chosen one is not among them."""
        self.drafter.options = self.other_drafter.options = drafters_of(self.pairs[self.pair.value])
        if self.drafter.value not in self.drafter.options:
            self.drafter.value = self.drafter.options[0]

    def _offer_rules(self, change=None) -> None:
        """The rules for the chosen temperature."""
        offered = rules_at(self.temperature.value)
        if tuple(self.rule.options) != offered:
            self.rule.options = offered

    def _made_drafter(self, pair: Pair, spec: str):
        """A drafter, with children for which the rule was made. ValueError for a rule that it cannot draft for."""
        proposal = RULES[self.rule.value].made_for
        if proposal == TOP_K:
            return make(spec, pair)
        try:
            return make(spec, pair, {"proposal": proposal, "temperature": self.temperature.value})
        except ValueError:
            raise ValueError(f"rule {self.rule.value!r} is for children that are sampled from a language model, and "
                             f"drafter {spec!r} does not sample: take rule {NAIVE!r}, or drafter 'model'") from None

    def _plain_speed(self, pair: Pair, prompt: Tensor) -> float:
        """Tokens per second of plain decoding of the prompt, without prefill; measured once for each setting."""
        key = pair.name, tuple(prompt.tolist()), self.new_tokens.value
        if key not in self.plain:
            done = generate(pair.target, NoDrafter(), prompt[None], shape="chain:0", eos_token_id=pair.eos_token_ids,
                            max_new_tokens=self.new_tokens.value)
            self.plain[key] = len(done.rounds) / sum(record.seconds for record in done.rounds)
        return self.plain[key]

    def _chosen_prompt(self, pair: Pair) -> Tensor:
        """int64[T]: the chosen or typed prompt. ValueError where nothing is typed."""
        if self.kind.value != TYPED:
            return self.prompts.ids[self.prompt.value]
        if not self.typed.value.strip():
            raise ValueError("the prompt is empty: type one, then click elsewhere")
        return dialogue.tokenise(dialogue.of_user(self.typed.value), pair.tokenizer)

    def _shape(self, name: str) -> Tree | Growth:
        """The static shape or growth rule of a name. ValueError for an unknown one, or one too large to read."""
        grown_from_data = name.partition("@")[0].strip() in ("sparse", "optimal")
        shape = named(name, acceptance=self.acceptance if grown_from_data else None)
        if shape.budget > MOST_NODES:
            raise ValueError(f"shape {name!r} has {shape.budget} nodes: give one of at most {MOST_NODES}, to stay "
                             "readable")
        return shape

    def _decode(self, change=None) -> None:
        """Decode with the settings of the controls when no other thread does, unless they have changed again."""
        with self.showing:
            self.changes += 1
            setting = self.changes
        with self.decoding:
            if setting == self.changes and (self.kind.value == TYPED or self.prompt.value is not None):
                self._decode_now()

    def _decode_now(self) -> None:
        """Decode with the settings of the controls, and show the first round; after an error the last one stays."""
        self.message.value = _note("decoding …")
        try:
            if not 0 <= self.temperature.value <= HOTTEST:
                raise ValueError(f"temperature is {self.temperature.value:g}: give 0 to {HOTTEST:g}")
            if not 2 <= self.new_tokens.value <= MOST_TOKENS:
                raise ValueError(f"new tokens is {self.new_tokens.value}: give 2 to {MOST_TOKENS}")
            pair = self.pairs[self.pair.value]
            prompt = self._chosen_prompt(pair)
            asked = [(self.drafter.value, self.shape.value), (self.other_drafter.value, self.other_shape.value)]
            steps, other = ([] if shape == NONE else walk(
                pair, self._made_drafter(pair, spec), prompt, self._shape(shape), rule=self.rule.value,
                temperature=self.temperature.value, new_tokens=self.new_tokens.value,
                generator=torch.Generator().manual_seed(self.seed)) for spec, shape in asked)
            if not steps:
                raise ValueError("the target ends the text with its first token, before any round: take another prompt")
            plain_speed = self._plain_speed(pair, prompt)
        except Exception as error:  # a callback's traceback would only appear in a log
            text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            text = text.replace("max_new_tokens", "new tokens")  # as the control has it
            stays = ". Below is still the last decoding that worked." if self.steps else ""
            self.message.value = _note(text + stays, "#B00020")
            return
        with self.showing:
            self.steps, self.other, self.plain_speed = steps, other, plain_speed
            self.message.value, self.shown.layout.display = "", None
            if self.round.value == 1:
                self._show()
            self.round.value = 1  # shows the first round if another one was shown
            self.round.max = len(steps)
            self._enable()

    def _move(self, by: int) -> None:
        with self.showing:
            self.round.value = min(max(self.round.value + by, 1), self.round.max)

    def _show(self, change=None) -> None:
        """Picture, numbers and running text of the chosen round."""
        with self.showing:
            step = self.step
            self.picture.value = of_step(step)
            self.timeline.svg = timeline_svg(self.steps, self.other, step.number)
            self.timeline.round = step.number
            self.numbers.value = _paragraph(describe_round(step, self.plain_speed) + compared(step, self.other))
            self.text.value = running_text(step)
            self._enable()

    def _enable(self) -> None:
        self.back.disabled, self.forward.disabled = self.round.value == 1, self.round.value == self.round.max


def drafters_of(pair: Pair) -> tuple[str, ...]:
    """The specs of drafters that are offered for a pair: its model, drafters of the text, and what ships for it."""
    return tuple(kinds_for(pair))


def rules_at(temperature: float) -> tuple[str, ...]:
    """The names of the lossless rules for a temperature, naive sampling first."""
    sampled = tuple(name for name, rule in RULES.items() if rule.sampled and rule.lossless)
    return sampled if temperature else (GREEDY,)


def _wide(width: str, **layout) -> ipywidgets.Layout:
    return ipywidgets.Layout(width=width, **layout)


def _note(text: str, colour: str = "#666") -> str:
    return _paragraph(escape(text), colour)


def _paragraph(html: str, colour: str = "inherit") -> str:
    """A sentence that may take two lines, closer together than a widget's own."""
    return f'<div style="line-height:1.5;color:{colour}">{html}</div>'


# ---------------------------------------------------------------------------------------------- a round as HTML and SVG


def running_text(step: Step) -> str:
    """The text so far as HTML: the prompt's end in grey, draft tokens and the target's own each on their colour.

    This round's tokens are bold. `pre` keeps white space and prevents MathJax from reading dollar signs.
    """
    pieces, first_fresh = [], len(step.text) - step.fresh
    for place, (text, who) in enumerate(step.text):
        if who == PROMPT:
            tail = "\n".join(text[-PROMPT_TAIL:].split("\n")[-PROMPT_LINES:])
            pieces.append(f'<span style="color:#777">{"…" * (tail != text)}{escape(tail)}</span>')
            continue
        fresh = place >= first_fresh
        red, green, blue = (round(255 * part) for part in to_rgb(WRITERS[who]))
        strong = f"font-weight:600;border-bottom:2px solid {WRITERS[who]};" if fresh else ""
        inner = escape(text).replace("\n", '<span style="opacity:.5">↵</span>\n')
        pieces.append(f'<span title="{who}" style="background:rgba({red},{green},{blue},{0.5 if fresh else 0.22});'
                      f'border-radius:3px;box-shadow:inset -1px 0 0 #fff;{strong}">{inner}</span>')
    return ('<div style="display:flex;flex-direction:column-reverse;max-height:15em;overflow:auto;background:#fff;'
            'border:1px solid #ddd;border-radius:4px;padding:8px 10px">'  # reversed: it stays scrolled to its end
            '<pre style="flex:none;overflow:visible;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;'
            'margin:0;padding:0;background:#fff;color:#222;'
            f'font:13px/1.65 DejaVu Sans Mono,Menlo,Consolas,monospace">{"".join(pieces)}</pre></div>')


def legend() -> str:
    """The meaning of the colours, numbers and signs of tree and text, as HTML."""
    meaning = {"root": "root, the last committed token", "accepted": "drafted and accepted",
               "rejected": "drafted, rejected", "bonus": "the target's own token"}
    square = "display:inline-block;width:.9em;height:.9em;border-radius:3px;vertical-align:-.1em"
    patches = [f'<span style="{square};background:{ROLES[role]}"></span>&nbsp; {text}'
               for role, text in meaning.items()]
    signs = ("%: a node's probability after its parent, the drafter's / the target's, or this alone; · a space, "
             "↵ a line's end")
    entries = [f'<span style="white-space:nowrap;margin-right:1.6em">{entry}</span>' for entry in [*patches, signs]]
    return f'<div style="font-size:12px;line-height:2">{" ".join(entries)}</div>'


def describe_round(step: Step, plain: float = float("nan")) -> str:
    """The round and the running totals in a sentence each, as HTML. plain: tokens per second of plain decoding."""
    rate, length = step.so_far.acceptance_rate, step.so_far.acceptance_length
    share = "–" if isnan(rate) else f"<b>{rate:.2f}</b>"
    accepted = f"<b>{len(step.accepted)}</b> of {step.tree.budget} draft tokens accepted"
    end = f"; the text ends after the first {step.fresh} of these" if step.fresh <= len(step.accepted) else ""
    return (f"Round {step.number} of {step.rounds}: {accepted}, then the target's own{end}. So far, over {step.number} "
            f"round{'s' * (step.number != 1)}: acceptance rate {share}, acceptance length <b>{length:.2f}</b> "
            f"tokens per round, <b>{step.written / step.seconds:.0f}</b> tokens per second"
            + ("." if isnan(plain) else f" ({plain:.0f} plainly)."))


def compared(step: Step, other: Sequence[Step]) -> str:
    """How far the second setting is where a round of the first ends, as HTML; empty without one."""
    if not other:
        return ""
    reached = next((one for one in other if one.written >= step.written), other[-1])
    return (f" The setting beside it has {reached.written} tokens after <b>{reached.number}</b> rounds and "
            f"{1000 * reached.seconds:.0f} ms; this one {step.written} after <b>{step.number}</b> and "
            f"{1000 * step.seconds:.0f} ms.")


def timeline_svg(steps: Sequence[Step], other: Sequence[Step], current: int) -> str:
    """The rounds over the tokens that they write, the second setting below: as wide as a round's tokens, as high as its
    accepted ones.
    """
    lanes = [lane for lane in (steps, other) if lane]
    scale = WIDE / max(lane[-1].written for lane in lanes)
    most = max(1, max(len(step.accepted) for lane in lanes for step in lane))
    bars = []
    for row, lane in enumerate(lanes):
        before, ground = 0, (LANE + 14) * row + LANE
        for step in lane:
            tall = 4 + (LANE - 6) * len(step.accepted) / most
            edge = f' stroke="{BLACK}" stroke-width="2"' if row == 0 and step.number == current else ""
            place = f' data-round="{step.number}" style="cursor:pointer"' if row == 0 else ""
            bars.append(f'<rect x="{scale * before + 1:.1f}" y="{ground - tall:.1f}" height="{tall:.1f}" width="'
                        f'{scale * (step.written - before) - 1:.1f}" fill="{shaded(len(step.accepted) / most)}"{edge}'
                        f'{place}><title>round {step.number}: {len(step.accepted)} of {step.tree.budget} draft tokens '
                        'accepted</title></rect>')
            before = step.written
        bars.append(f'<text x="0" y="{ground + 11}">{("this setting", "beside it")[row]}: {len(lane)} rounds for '
                    f'{before} tokens</text>')
    return (f'<svg width="{WIDE + 4}" height="{(LANE + 14) * len(lanes)}" role="img" font-size="11" '
            f'font-family="sans-serif">{"".join(bars)}</svg>')


def of_step(step: Step) -> str:
    """The round's tree with its tokens, and the probabilities that are known."""
    chances = {"drafter": step.probabilities, "target": step.target_probabilities}
    return round_svg(step.parents, [visible(token) for token in (*step.tokens, step.bonus)], step.roles,
                     {who: [*row, nan] for who, row in chances.items() if row is not None})
