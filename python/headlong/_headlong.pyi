from os import PathLike
from typing import Any, Callable, Sequence, Union

__version__: str

class Error(ValueError):
    """What Headlong cannot do, in one sentence."""

class Frame:
    """Rows in memory, which are not copied."""

    @staticmethod
    def of(object: Any) -> "Frame": ...
    @staticmethod
    def of_columns(columns: "dict[str, Any]") -> "Frame": ...
    def with_column(self, name: str, numbers: "tuple[str, bytes]") -> "Frame": ...
    @property
    def names(self) -> "list[str]": ...
    def __len__(self) -> int: ...

class Columns:
    """What the networks of a model take, made of rows."""

    def __init__(
        self,
        config: str,
        rows: Sequence[int],
        dictionary: "bytes | None" = None,
        admitted: "bytes | None" = None,
    ) -> None: ...
    def read(
        self, data: "Sequence[_Input]"
    ) -> "tuple[int, bytearray, list[tuple[bytearray, bytearray | None]]]": ...

_Input = Union[Frame, str, "PathLike[str]"]

def train(
    words: Sequence[str],
    data: Sequence[_Input],
    valid: Sequence[_Input],
    label: "str | None",
    listen: Callable[[str], Any],
    shows_bar: bool,
) -> None: ...
def predict(
    folder: "str | PathLike[str]", newest: bool, data: Sequence[_Input]
) -> "tuple[bytearray, list[str]]": ...
def evaluate(
    folder: "str | PathLike[str]", newest: bool, data: Sequence[_Input]
) -> "tuple[str, list[str]]": ...
def export_torch(
    folder: "str | PathLike[str]", newest: bool, output: "str | PathLike[str]"
) -> None: ...
def models(folder: "str | PathLike[str]", newest: bool) -> int: ...
def flags() -> "list[str]": ...
def to_toml(json: str) -> str: ...
def in_python(text: str) -> str: ...
def main(arguments: Sequence[str], program: Sequence[str]) -> int: ...
