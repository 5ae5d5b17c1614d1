"""Logged answers as texts of which `recording.read` makes a trace without their target: the tokens that a served model
wrote decide every tree of top-k children, under greedy verification and under naive sampling at any temperature.

A log has JSON Lines or is an array, and may be compressed by gzip. Each value is one of
    {"messages": [..., {"role": "assistant", "content": ...}]}, a dialogue that ends with the answer;
    {"messages" or "prompt": ..., "choices": [...]}, the bodies of a request and of its response in one;
    {"request": {...}, "response": {...}}, these bodies apart, as `endpoint` writes them;
    {"custom_id": ..., "response": {"body": {...}}}, the batch API's output, after the lines of the batch's input file,
    which have the requests of the same `custom_id`.
An answer is exact where its token ids are logged (`token_ids` and `prompt_token_ids`, which vLLM returns if a request
asks for them by `return_token_ids`). Elsewhere its text is tokenised, which need not give the tokens that were written;
a prompt that is made here must have as many tokens as the server counted (`usage.prompt_tokens`), if it did.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from unicodedata import normalize

import torch

from lib.lab import units
from lib.lab.json_lines import mapping, typed
from lib.models import dialogue
from lib.replay import log_lines
from lib.replay.log_lines import Answer
from lib.replay.recording import Texts

BY_IDS, BY_TEXT = "token ids", "text alone"  # how an answer's tokens are known
MOST_REFUSED = 0.1  # share of lines that may be refused
BESIDE_TEXT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "reasoning_details", "thinking",
               "thinking_blocks", "refusal", "audio")  # of an answer's message
LOG_IDS = "log the ids of prompt and answer (vLLM: return_token_ids)"
AT_END = {"eos_token", "eos", "end_turn", "end_of_turn", "complete", "stop_token"}  # reasons to finish: an end token
NOT_AT_END = {"length", "max_tokens", "max_length", "model_length", "stop_sequence", "stop_string", "stop_str", "abort",
              "tool_calls", "function_call", "tool_use", "content_filter", "error", "none"}
EITHER = "stop"  # an end token or a stop string
ODD = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError, OSError)  # of odd values


@dataclass(frozen=True)
class LoggedTexts(Texts):
    """Logged answers as tokens, EOS included where it ended one; known_by BY_IDS or BY_TEXT; temperatures: those that
    the log has; refused: by line the reason; unknown_ends: finish reasons that are not known, with their numbers.
    """

    BY_ROW = (*Texts.BY_ROW, "known_by")

    known_by: Sequence[str]
    temperatures: Sequence[float]
    refused: Mapping[str, str]
    unknown_ends: Mapping[str, int]

    @property
    def summary(self) -> str:
        """How many answers are read, and what is odd about them."""
        ends = ", ".join(f"{reason!r} ({count})" for reason, count in self.unknown_ends.items())
        return (f"the log has {len(self.names)} answers, and {len(self.refused)} lines that are refused" +
                (f"; answers with the finish reasons {ends}, which are not known, count as cut off" if ends else ""))


def read(path: str | Path, tokenizer, *, eos_token_id: int | Sequence[int]) -> LoggedTexts:
    """The answers of a log as tokens of a tokenizer, in whose chat template they were asked for; those of one
    conversation are named as its turns, and those to equal prompts as its answers.

    An answer that ended by itself gets a last token where its tokens lack it: the one that the server names, else the
    chat template's end of a turn, else the first EOS token. ValueError where more than MOST_REFUSED cannot be used.
    """
    answers, refused = log_lines.read(path)
    usual_ends = [dialogue.end_of_turn(tokenizer), *([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)]
    rows, temperatures, unknown_ends, differences = [], set(), Counter(), []
    for answer in answers:
        try:
            temperature = typed({**answer.response, **answer.request}, "temperature", (int, float))
            prompt = _prompt(answer, tokenizer)
            counted = typed(typed(answer.response, "usage", Mapping, {}), "prompt_tokens", int, len(prompt))
            differences.append(counted - len(prompt))
            if counted != len(prompt):
                raise ValueError(f"the server counted {counted} tokens in the prompt (usage.prompt_tokens), and here "
                                 f"it has {len(prompt)}; {LOG_IDS}")
            ids, ended, known_by = _written(answer, prompt, tokenizer, usual_ends)
            rows.append((answer.name, answer.kind, torch.tensor(prompt), ids, ended, known_by, _dialogue(answer)))
        except ODD as error:
            form = f"it has another form ({type(error).__name__}: {error})"
            refused[answer.where] = str(error) if type(error) is ValueError else form
            continue
        temperatures |= set() if temperature is None else {float(temperature)}
        unknown_ends.update({_finish(answer)[0]} - AT_END - NOT_AT_END - {EITHER})
    if not rows or len(refused) > MOST_REFUSED * (len(refused) + len(rows)):
        reasons = "; ".join(f"{where}: {reason}" for where, reason in list(refused.items())[:3]) or "it has no line"
        if len({*differences}) == 1 and any(differences):
            more, server = differences[0], "server's template" if "messages" in answers[0].request else "server"
            adds = f"adds {more} tokens to" if more > 0 else f"takes {-more} tokens from"
            reasons = (f"the {server} {adds} each prompt: {LOG_IDS}, or give its template to the tokenizer, or to the "
                       f"requests (chat_template); {reasons}")
        raise ValueError(f"{path} has {len(rows)} answers that can be used, and {len(refused)} that cannot "
                         f"({reasons}); mend or remove these")
    names, kinds, *texts, known_by, dialogues = zip(*rows)
    names = units.named_by_unit(names, dialogues, [tuple(prompt.tolist()) for prompt in texts[0]])
    return LoggedTexts(names, kinds, *texts, known_by, tuple(sorted(temperatures)), refused, unknown_ends)


def _dialogue(answer: Answer) -> tuple[str, ...]:
    """The messages of a request and the answer, white space around them aside; the answer alone of a completion."""
    turns = [*(answer.request.get("messages") or ()), {"role": "assistant", **answer.message}]
    return tuple(f"{turn['role']}: {str(turn.get('content')).strip()}" for turn in turns)


def _prompt(answer: Answer, tokenizer) -> list[int]:
    """The tokens of a prompt: as they are logged, or made of it and cut as the request asks for."""
    logged, most = _ids(answer.of_response("prompt_token_ids")), typed(answer.request, "truncate_prompt_tokens", int)
    ids = logged or _made(answer, tokenizer)
    if most is not None and (len(ids) > most > 0 if logged else most < 1):
        raise ValueError(f"truncate_prompt_tokens is {most}, " + (
            f"and prompt_token_ids has {len(ids)}" if logged else f"which is not known here; {LOG_IDS}"))
    text = answer.request.get("prompt")
    if logged and most is None and isinstance(text, str) and not _holds(ids, text, tokenizer):
        raise ValueError("its prompt_token_ids are those of another prompt in this tokenizer")
    return ids if logged or most is None else ids[-most:]


def _made(answer: Answer, tokenizer) -> list[int]:
    """The tokens of a dialogue in the chat template, at the day of the answer; or of a completion's prompt, in which a
    server reads the texts of control tokens as such.
    """
    request, created = answer.request, typed(answer.response, "created", (int, float))
    if typed(request, "messages", list):
        messages = [{**mapping(turn, "a message"), "content": dialogue.text_of(turn, "\n")}
                    for turn in request["messages"]]
        day = None if created is None else datetime.fromtimestamp(created, timezone.utc).date().isoformat()
        return dialogue.tokenise(messages, tokenizer, day, dialogue.options_of(request),
                                 typed(request, "add_special_tokens", bool, False)).tolist()
    prompt, with_special = _plain_prompt(request), typed(request, "add_special_tokens", bool, True)
    return _ids(tokenizer(prompt, add_special_tokens=with_special)["input_ids"] if isinstance(prompt, str) else prompt)


def _plain_prompt(request: Mapping) -> str | list[int]:
    """The prompt of a completion, which may be the only one of a list."""
    prompt = request.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ValueError(f"the request has {len(prompt)} prompts; log one per line")
        prompt, = prompt
    if not prompt or not isinstance(prompt, str | list):
        raise ValueError(f"the request has neither messages nor a prompt ({prompt!r:.40})")
    return prompt


def _written(answer: Answer, prompt: Sequence[int], tokenizer,
             usual_ends: Sequence[int | None]) -> tuple[list[int], bool, str]:
    """An answer as tokens; whether it ended by itself; BY_IDS or BY_TEXT."""
    ids, message = _ids(answer.of_response("token_ids")), answer.message
    beside = [name for name in BESIDE_TEXT if message.get(name)]
    details = typed(typed(answer.response, "usage", Mapping, {}), "completion_tokens_details", Mapping, {})
    if beside or details.get("reasoning_tokens"):
        if not (ids and answer.of_response("prompt_token_ids")):
            beside = [*beside, "reasoning that is not logged"][0]
            raise ValueError(f"the answer has {beside} beside its text, and not how the model wrote both; {LOG_IDS}")
        message = {"content": ""}
    known_by = BY_IDS if ids else BY_TEXT
    text, ids = _after_echo(answer, dialogue.text_of(message, "", needed=not ids), ids, prompt, tokenizer)
    reason, end = _finish(answer)
    ends = [token for token in (end, *usual_ends) if type(token) is int]
    if wrong := [token for token in (*prompt, *(ids or ()), ends[0]) if not 0 <= token < len(tokenizer)]:
        raise ValueError(f"it has token {wrong[0]}, the tokenizer has {len(tokenizer)}")
    if ids and not _holds(ids, text, tokenizer):
        raise ValueError("its token_ids are those of another text in this tokenizer")
    ids = list(ids or dialogue.of_answer(text, tokenizer, answer.request.get("skip_special_tokens") is False))
    # vLLM names the stop string that ended an answer; of other servers' answers any may be one.
    at_string = isinstance(end, str) or end is None and "stop_reason" not in answer.choice and bool(
        answer.request.get("stop"))
    if (reason in AT_END or reason == EITHER and not at_string) and ids[-1] not in ends:
        ids.append(ends[0])
    return ids, ids[-1] in ends, known_by


def _finish(answer: Answer) -> tuple[str, object]:
    """Why an answer ended, and at which token or stop string, as far as the server tells it."""
    choice = answer.choice
    end, reason = choice.get("stop_reason", choice.get("matched_stop")), choice.get("finish_reason")
    if isinstance(reason, Mapping):
        end, reason = reason.get("matched", end), reason.get("type")
    if str(end).lower() in AT_END:
        end, reason = None, end
    return str(reason).lower(), end


def _after_echo(answer: Answer, text: str, ids: list[int] | None, prompt: Sequence[int],
                tokenizer) -> tuple[str, list[int] | None]:
    """The text and the ids of an answer without the prompt before them, where the request asks for it too."""
    if not typed(answer.request, "echo", bool):
        return text, ids
    if answer.request.get("messages"):
        last = answer.request["messages"][-1]
        echoed = dialogue.text_of(last, "\n") if last["role"] == "assistant" else ""
    else:
        echoed = _plain_prompt(answer.request)
        echoed = echoed if isinstance(echoed, str) else tokenizer.decode(echoed)
    if not ids and not text.startswith(echoed):
        raise ValueError("it asks for an echo of the prompt, and the text does not begin with it")
    return text.removeprefix(echoed), ids[len(prompt) :] if ids and ids[: len(prompt)] == [*prompt] else ids


def _holds(ids: Sequence[int], text: str, tokenizer) -> bool:
    """Whether tokens are those of a text, or of more, Unicode's forms aside, and characters that are cut off."""
    wholes = (normalize("NFKC", tokenizer.decode(ids, skip_special_tokens=skip)) for skip in (False, True))
    return any(normalize("NFKC", text).strip("\ufffd").lstrip(" ") in whole for whole in wholes)


def _ids(tokens) -> list[int] | None:
    """Token ids; None where there are none."""
    if tokens and not (isinstance(tokens, list) and all(type(token) is int and token >= 0 for token in tokens)):
        raise ValueError(f"its token ids are {tokens!r:.40}, no numbers of tokens")
    return tokens or None
