"""What a refusal of the Hugging Face hub means to who asked for a model or a head, and what to do about it."""

from typing import Iterator


def meaning(error: BaseException) -> str:
    """The rest of a sentence that begins with the model's name; empty where no hub had a part in the error."""
    from huggingface_hub import errors

    causes = list(chain(error))
    by_kind = {
        (errors.GatedRepoError,): "is gated; accept its licence on the hub, then log in with `hf auth login`",
        (errors.RevisionNotFoundError,):
            "is no revision that the hub has of this model; leave @REVISION out, or name one that its page lists",
        (errors.RepositoryNotFoundError, errors.HFValidationError):
            "is neither a folder here nor a public model on the hub; check the spelling, and if it is private log in "
            "with `hf auth login`",
        (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError):
            "is not on this machine and the hub cannot be reached; check the network, set HF_HUB_OFFLINE=0 to allow "
            "it, or take a folder or what ships",
    }
    found = (said for kinds, said in by_kind.items() if any(isinstance(cause, kinds) for cause in causes))
    return next(found, "")


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it, the last first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
