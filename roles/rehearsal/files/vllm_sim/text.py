# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The "model": a prompt has a digest, the digest makes the text.

A decode engine that got its KV blocks from a prefill writes from the digest that *travelled*, so a transfer that did
not happen, or brought another prompt's blocks, cannot look right.
"""

from __future__ import annotations

import hashlib
import json

from vllm_sim.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIGEST_LENGTH = 64
# The point where an answer ends by itself, if its limit does not end it before.
_SHORTEST_ANSWER = 24
_ANSWER_SPREAD = 16
_CHARACTERS_PER_TOKEN = 4
_WORDS = (
    *("the", "model", "reads", "a", "long", "prompt", "on", "one", "side", "and", "then", "writes", "its", "answer"),
    *("from", "there", "so", "every", "block", "of", "memory", "must", "travel", "before", "first", "words", "appear"),
)


class Prompt:
    """One prompt of a request: its size in tokens and its digest."""

    __slots__ = ("digest", "tokens")

    def __init__(self, text: str, tokens: int) -> None:
        self.tokens = max(1, tokens)
        self.digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_prompt(body: dict[str, Any], chat: bool) -> Prompt:
    """The prompt of a completion (text or token ids) or of a chat (its messages)."""
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestError(400, "BadRequestError", "messages: Field required")
        text = json.dumps(messages, sort_keys=True)
        return Prompt(text, len(text) // _CHARACTERS_PER_TOKEN)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return Prompt(" ".join(map(str, prompt)), len(prompt))
    if isinstance(prompt, str) and prompt:
        return Prompt(prompt, -(-len(prompt) // _CHARACTERS_PER_TOKEN))
    raise RequestError(400, "BadRequestError", "prompt: one text or one list of token ids is required")


def natural_length(digest: str) -> int:
    """After how many tokens the answer to a prompt ends by itself."""
    return _SHORTEST_ANSWER + int(digest[:4], 16) % _ANSWER_SPREAD


def token(digest: str, position: int) -> str:
    """The token at a position of the answer that belongs to a digest."""
    mixed = int(digest[position % DIGEST_LENGTH], 16) + int(digest[-1 - position % DIGEST_LENGTH], 16) * 16 + position
    return " " + _WORDS[mixed % len(_WORDS)]


def split_digest(digest: str, parts: int) -> list[str]:
    """The digest as ``parts`` non-empty pieces, one for each worker that holds KV blocks."""
    whole = digest * -(-parts // DIGEST_LENGTH)
    return [whole[index * len(whole) // parts : (index + 1) * len(whole) // parts] for index in range(parts)]


def join_digest(pieces: list[str]) -> str:
    return "".join(pieces)[:DIGEST_LENGTH]
