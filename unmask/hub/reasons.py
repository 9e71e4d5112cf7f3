"""Why a model of the hub cannot be had, and what to do, in one line."""

from __future__ import annotations

from unmask.hub.names import HubName


def failures() -> tuple[type[Exception], ...]:
    """What a request to the hub may raise; which errors of the HTTP client come through depends on its version."""
    from huggingface_hub import errors

    return (OSError, RuntimeError, *errors.HfHubHTTPError.__bases__)


def is_offline(error: Exception) -> bool:
    """Whether the hub was not reached at all, or is down."""
    from huggingface_hub import errors

    return isinstance(error, errors.LocalEntryNotFoundError | ConnectionError)


def reason(wanted: HubName, error: Exception, lack: str | None) -> str:
    """The second half of a sentence that has said that there is no such path.

    Args:
        wanted: The model.
        error: Of huggingface_hub, or of what it uses.
        lack: A file that a copy in the cache lacks; None: there is no copy.
    """
    from huggingface_hub import errors

    token = "set HF_TOKEN, or run `hf auth login`"
    if isinstance(error, errors.GatedRepoError):
        return f"and on the hub it is gated: ask for access on its page there, then {token}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"and no such model on the hub; mind the spelling, or, if it is private, {token}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"and on the hub {wanted.name} has no revision {wanted.revision or 'main'!r}; name another one"
    if getattr(getattr(error, "response", None), "status_code", None) in {401, 403}:
        return f"and the hub denies access to it: {token}"
    told = cause_of(error)
    if is_offline(error):
        copy = "no copy of such a model of the hub on this machine" if lack is None else f"its copy lacks {lack}"
        return (
            f"{copy}, and the hub cannot be reached ({told}); give a path, such as RUN/model, or fetch the model where "
            f"there is a network: hf download {wanted.name}"
        )
    return f"and it cannot be fetched from the hub ({told}); give a path, such as RUN/model, or try again"


def cause_of(error: Exception) -> str:
    """Why the hub was not reached, in a few words."""
    from huggingface_hub import constants

    cause = error.__cause__ or error
    return "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{type(cause).__name__}: {_first_line(cause)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason is given")
