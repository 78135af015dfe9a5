"""Greedy generation in batches with a key/value cache.

Prompts of similar length share a batch and are padded on the left, so that every row's
next token stands in the last column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lazytrain.data.prompts import stop_token_ids


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    max_new_tokens: int,
    batch: int,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Return the model's greedy continuation of each prompt, without marks.

    Args:
        model: A Hugging Face causal model; its mode is put back afterwards.
        tokenizer: The tokenizer that the prompts were rendered for.
        prompts: Rendered prompts (:func:`lazytrain.data.prompts.prompt_text`).
        max_new_tokens: Most tokens written for a prompt.
        batch: Prompts per batch.
        progress: Called with the number of prompts done so far.
    """
    encoded = [tokenizer(p, add_special_tokens=False)["input_ids"] for p in prompts]
    order = sorted(range(len(prompts)), key=lambda place: len(encoded[place]))
    texts = [""] * len(prompts)
    was_training = model.training
    model.eval()
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        rows = [encoded[place] for place in places]
        written = _continue(model, tokenizer, rows, max_new_tokens)
        for place, tokens in zip(places, written, strict=True):
            texts[place] = tokenizer.decode(tokens, skip_special_tokens=True)
        if progress is not None:
            progress(start + len(places))
    model.train(was_training)
    return texts


def left_padded(
    rows: Sequence[Sequence[int]], pad_token_id: int
) -> tuple[Tensor, Tensor]:
    """Return token ids ``[B, T]`` padded on the left, and their mask."""
    width = max(len(row) for row in rows)
    input_ids = torch.full((len(rows), width), pad_token_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), width), dtype=torch.int64)
    for place, row in enumerate(rows):
        input_ids[place, width - len(row) :] = torch.tensor(row)
        mask[place, width - len(row) :] = 1
    return input_ids, mask


def _continue(
    model: Any, tokenizer: Any, rows: Sequence[Sequence[int]], max_new_tokens: int
) -> list[list[int]]:
    """Return the new tokens of one batch, cut before the first stop token."""
    stops = stop_token_ids(tokenizer)
    input_ids, mask = left_padded(rows, tokenizer.pad_token_id)
    device = next(model.parameters()).device
    with torch.inference_mode():
        output = model.generate(
            input_ids=input_ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            temperature=None,
            top_p=None,
            top_k=None,
            # A model's own settings may hold one, and the search is then not greedy.
            repetition_penalty=1.0,
            eos_token_id=stops,
            pad_token_id=tokenizer.pad_token_id,
            use_cache=True,
        )
    new = output[:, input_ids.shape[1] :].tolist()
    return [_before_stop(tokens, stops) for tokens in new]


def _before_stop(tokens: list[int], stops: Sequence[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in stops:
            return tokens[:place]
    return tokens
