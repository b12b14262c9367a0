"""How questions and answers travel to and from a Ray actor.

Ray moves objects of up to 100 kB in the call itself, others through its object store, which takes more than a
millisecond more each way; and plain bytes take it a fraction of the time that other objects do. So what is
not larger than some hundred kilobytes is pickled here and cut into pieces. The rest is better off in the
store.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from grassia.messages import Message, Reply

PIECE = 96 << 10
INLINE = 512 << 10  # at about this size the store is as quick
BESIDE = 2 << 10  # what a message takes beside its arrays, about


def cut(what: Any) -> list[bytes]:
    """Pickled, in pieces.

    >>> import numpy as np
    >>> pieces = cut({"x": np.eye(200)})
    >>> len(pieces), joined(pieces)["x"].shape
    (4, (200, 200))
    """
    data = memoryview(pickle.dumps(what, protocol=5))
    return [bytes(data[start : start + PIECE]) for start in range(0, len(data), PIECE)]


def joined(pieces: Sequence[bytes]) -> Any:
    """What `cut` was given."""
    return pickle.loads(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def pieces_for(nbytes: int) -> int:
    """How many pieces to expect for arrays of so many bytes; 1 where they had better go through the store.

    >>> pieces_for(0), pieces_for(PIECE), pieces_for(INLINE), pieces_for(INLINE + 1)
    (1, 2, 6, 1)
    """
    return -(-(nbytes + BESIDE) // PIECE) if nbytes <= INLINE else 1


def size_of(messages: Iterable[Message]) -> int:
    """Bytes of the arrays of the largest reply."""
    return max((one.nbytes for one in messages if isinstance(one, Reply)), default=0)


def answer_in(count: int, messages: list[Message]) -> Any:
    """What an actor's method returns that was told to return so many values."""
    pieces: list[Any] = cut(messages) if size_of(messages) <= INLINE else []
    if not 0 < len(pieces) <= count:
        pieces = [messages]
    pieces += [b""] * (count - len(pieces))
    return pieces if count > 1 else pieces[0]


def answer_of(returned: Sequence[Any]) -> list[Message]:
    """The messages that `answer_in` was given.

    >>> answer_of(answer_in(3, [])), answer_of([answer_in(1, [])])
    ([], [])
    """
    found: list[Message] = returned[0] if isinstance(returned[0], list) else joined(returned)
    return found
