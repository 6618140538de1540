"""The setting of windows that are cut out of episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamrec.config.arguments import plain_integer
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationInfo


@dataclass(frozen=True)
class Window:
    """The settings for windows of steps, where each record is an episode: ``streamrec.Window``.

    Args:
        length: The number of steps in a window.
        stride: The number of steps from one window of an episode to the next.
        pad: ``"end"``: a window begins at each step (by stride), and those at the end repeat the
            last step. ``"start"``: a window ends at each step, and those at the start repeat the
            first one. ``None``: windows lie inside their episode, and a shorter one has none.
        future: Further steps behind the window, for each feature that needs them, as
            ``{"steps/action": 8}``.

    Raises:
        ConfigError: An argument is wrong.
    """

    length: int
    stride: int = 1
    pad: Literal["end", "start"] | None = "end"
    future: dict[str, int] | None = None

    def __post_init__(self) -> None:
        """Refuse wrong arguments."""
        for name in ("length", "stride"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
        more = self.future or {}
        counts = [self.length, self.stride, *more.values()]
        if not all(type(count) is int and count > 0 for count in counts):
            raise ConfigError(
                "Window takes integers from 1 up as length and stride, and in future, but "
                f"these are {self}; correct them"
            )
        if self.pad not in ("end", "start", None):
            raise ConfigError(f'pad of Window is {self.pad!r}; choose "end", "start" or None')

    def steps_of(self, name: str) -> int:
        """Return the number of steps that a feature has in a window."""
        return self.length + (self.future or {}).get(name, 0)


def plain_window(given: Any) -> Any:
    """Return these settings, or those of their plain form.

    Raises:
        ValueError: It is something else.
    """
    if type(given) is Window:
        return given
    if type(given) is not dict or not given.keys() <= Window.__dataclass_fields__.keys():
        raise ValueError
    if "length" not in given:
        raise ValueError
    return Window(**given)


def read_window(given: object, others: ValidationInfo) -> object:
    """Make the settings of their plain form, which is strict for a file alone."""
    if not isinstance(given, dict) or others.mode == "json":
        return given
    try:
        return plain_window(given)
    except ValueError:  # pydantic's own check of the field comes next
        return given
