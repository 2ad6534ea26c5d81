"""vLLM's `truncate_prompt_tokens`: how many of a prompt's last tokens are kept, and which.

All endpoints that take the field check it and cut by it here. Without it nothing is ever cut: what
does not fit is refused.
"""

from __future__ import annotations

from tinyserve.errors import RequestError

ALL_THERE_IS_ROOM_FOR = -1


def check_truncation(keep: int | None) -> None:
    """Raise RequestError where the field's value makes no sense."""
    if keep is not None and keep != ALL_THERE_IS_ROOM_FOR and keep < 1:
        raise RequestError(
            "truncate_prompt_tokens must be at least 1, or -1 for as many as there is room for, "
            f"got {keep}",
            param="truncate_prompt_tokens",
        )


def truncated(ids: list[int], keep: int | None, room: int) -> list[int]:
    """The prompt, or its last `keep` tokens; `room` is how many a prompt may have."""
    if keep is None:
        return ids
    return ids[-max(1, room) :] if keep == ALL_THERE_IS_ROOM_FOR else ids[-keep:]
