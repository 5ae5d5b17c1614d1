"""What an error of the Hugging Face hub, or of reading a model, means to the user, and the remedy."""

from typing import Iterator

from lib.models.checks import PairError, first_line

UNREACHABLE = ("is not on this machine and the hub cannot be reached; check the network, set HF_HUB_OFFLINE=0 to allow "
               "it, or take a folder or a shipped model")


def why_not(source, error: BaseException) -> PairError:
    """The PairError for a failed reading of config, tokenizer or weights, from the errors that caused it."""
    causes = list(chain(error))
    texts = " ".join(str(cause) for cause in causes)
    refused, first = meaning(error), first_line(error)
    if "trust_remote_code" in texts:
        reason = "brings code of its own, which never runs here; choose a model that transformers supports"
    elif "does not recognize this architecture" in texts or "Unrecognized model" in texts:
        reason = (f"is of no type that this version of transformers supports ({first}); check its config.json, or "
                  "choose another model")
    elif refused:
        reason = refused
    elif "ignore_mismatched_sizes" in texts:
        reason = "has weights of other shapes than its config.json says; fetch or save both again"
    elif "safetensors" in texts or any(type(cause).__name__ == "SafetensorError" for cause in causes):
        reason = (f"holds no readable safetensors ({first}), and no other format is read here; if you trust it, save "
                  "it again with `model.save_pretrained(FOLDER)` and give that folder")
    else:
        reason = (f"cannot be read as a model ({first}); check that it has config.json, model.safetensors and "
                  "tokenizer files")
    return PairError(f"{source} {reason}")


def meaning(error: BaseException) -> str:
    """The rest of a sentence that begins with the model's name; empty where the error did not come from the hub."""
    from huggingface_hub import errors

    causes = list(chain(error))
    by_kind = {
        (errors.GatedRepoError,): "is gated; accept its licence on the hub, then log in with `hf auth login`",
        (errors.RevisionNotFoundError,):
            "is no revision that the hub has of this model; leave @REVISION out, or name one that its page lists",
        (errors.RepositoryNotFoundError, errors.HFValidationError):
            "is neither a folder here nor a public model on the hub; check the spelling, and if it is private log in "
            "with `hf auth login`",
        (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError): UNREACHABLE,
    }
    reasons = (reason for kinds, reason in by_kind.items() if any(isinstance(cause, kinds) for cause in causes))
    return next(reasons, "")


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, the last error first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
