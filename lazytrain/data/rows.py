"""One example of a data set in the shape every later stage works on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from lazytrain.errors import InvalidInput
from lazytrain.records import Contract, sha256_text, write_lines

Role = Literal["system", "user", "assistant", "tool"]
ASKING: Final = ("user", "tool")


def _absent(default: Any) -> Any:
    """Return a field that is written only where it has another value.

    Rows without tools keep the bytes, and so the hashes, of rows that knew no tools.
    """
    return Field(default=default, exclude_if=lambda value: value == default)


class Call(Contract):
    """One call of a tool: its name, and its arguments as the text of a JSON object."""

    name: str
    arguments: str
    call_id: str = _absent("")


class Message(Contract):
    """One turn of a conversation.

    An assistant's turn may hold ``calls``, with or without a text; a tool's answer
    names the call that it answers by ``name`` and ``call_id``.
    """

    role: Role
    content: str
    calls: tuple[Call, ...] = _absent(())
    name: str = _absent("")
    call_id: str = _absent("")


class Row(Contract):
    """A question, its worked answer, and the question it was made from.

    ``row_id`` is the row's place in the rows file; ``original_question`` groups rows
    that must stay on one side of a split. ``history`` holds the turns before ``query``
    of a multi-turn row, ``mask_history`` takes no loss over its assistant turns, and
    ``train_on_prompt`` takes the loss over the prompt as well. ``tools`` is the JSON
    text of a list of function schemas, as the data ordered their keys; ``calls`` are
    those of the response, ``query_name`` and ``query_call_id`` say which call a query
    of the role ``tool`` answers.
    """

    row_id: int
    query: str
    response: str
    original_question: str
    type: str
    query_role: Role = "user"
    history: tuple[Message, ...] = ()
    mask_history: bool = False
    train_on_prompt: bool = False
    tools: str = _absent("")
    calls: tuple[Call, ...] = _absent(())
    query_name: str = _absent("")
    query_call_id: str = _absent("")

    @property
    def messages(self) -> list[Message]:
        """The conversation: history, then the question, then the answer."""
        question = Message(
            role=self.query_role,
            content=self.query,
            name=self.query_name,
            call_id=self.query_call_id,
        )
        answer = Message(role="assistant", content=self.response, calls=self.calls)
        return [*self.history, question, answer]

    @property
    def uses_tools(self) -> bool:
        """Whether tools are described, called or heard."""
        if self.tools or self.calls or self.query_role == "tool":
            return True
        return any(turn.calls or turn.role == "tool" for turn in self.history)

    @property
    def asked(self) -> str:
        """Everything that was asked: of a multi-turn row, all turns but answers."""
        earlier = [turn.content for turn in self.history if turn.role in ASKING]
        return "\n".join([*earlier, self.query])


def content_sha256(row: Row) -> str:
    """Hash what a row says, whatever its place in the file.

    Fields at their defaults are left out, so that a new optional field changes no hash.
    """
    said = row.model_dump(mode="json", exclude={"row_id"}, exclude_defaults=True)
    return sha256_text(json.dumps(said, sort_keys=True, separators=(",", ":")))


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write rows as JSON lines, atomically; line ``i`` holds row ``i``."""
    write_lines(rows, path)


def read_rows(path: Path) -> list[Row]:
    """Read a rows file.

    Raises:
        InvalidInput: If the file is missing, a line is no row, or a row id is not its
            line's place (so a duplicate id cannot pass).
    """
    return list(_checked(path))


def _checked(path: Path) -> Iterator[Row]:
    if not path.is_file():
        raise InvalidInput("rows", str(path), "the file does not exist")
    with path.open(encoding="utf-8") as file:
        for place, line in enumerate(file):
            try:
                row = Row.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                field = ".".join(map(str, first["loc"])) or "row"
                remedy = f"{first['msg']} (line {place + 1} of {path})"
                raise InvalidInput(field, first.get("input"), remedy) from error
            if row.row_id != place:
                remedy = f"must be {place}, its place (line {place + 1} of {path})"
                raise InvalidInput("row_id", row.row_id, remedy)
            yield row
