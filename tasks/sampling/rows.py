"""The responses being written: one row each, each at a position of its own.

Dimensions: `B` rows, `T` response positions, `R` choices of experts per token, 0 if not recorded.
"""

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from tasks.sampling.sampler import Completion


@dataclass(kw_only=True)
class Rows:
    """Every tensor has one entry per row.

    Attributes:
        ids_B: which response it is, counted over all prompts.
        uniforms_BT: the uniform numbers that its tokens are drawn with.
        prompt_lengths_B: tokens of its prompt.
        tokens_BT, logprobs_BT: what is written, with one column more than `T`: the draws of a
            finished row, which stays until its place is needed, go beyond its end.
        experts_BTR: where the tokens written were sent, once they have been computed.
        lengths_B: tokens written.
        last_B: the token drawn last.
        is_open_B: whether it goes on.
    """

    ids_B: Tensor
    uniforms_BT: Tensor
    prompt_lengths_B: Tensor
    tokens_BT: Tensor
    logprobs_BT: Tensor
    experts_BTR: Tensor
    lengths_B: Tensor
    last_B: Tensor
    is_open_B: Tensor

    @classmethod
    def begin(
        cls, ids_B: Tensor, uniforms_BT: Tensor, prompt_lengths_B: Tensor, num_choices: int
    ) -> Self:
        """Return rows with nothing written."""
        num_rows, max_tokens = uniforms_BT.shape
        return cls(
            ids_B=ids_B,
            uniforms_BT=uniforms_BT,
            prompt_lengths_B=prompt_lengths_B,
            tokens_BT=ids_B.new_zeros(num_rows, max_tokens + 1, dtype=torch.int32),
            logprobs_BT=ids_B.new_zeros(num_rows, max_tokens + 1, dtype=torch.float32),
            experts_BTR=ids_B.new_zeros(num_rows, max_tokens, num_choices, dtype=torch.int16),
            lengths_B=torch.zeros_like(ids_B),
            last_B=torch.zeros_like(ids_B),
            is_open_B=torch.ones_like(ids_B, dtype=torch.bool),
        )

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Return the rows of all parts, in order."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})

    def __len__(self) -> int:
        return len(self.ids_B)

    def at(self, places: Tensor) -> Self:
        """Return the rows at these places, or where a mask is true."""
        names = [field.name for field in fields(self)]
        return type(self)(**{name: getattr(self, name)[places] for name in names})

    def seen(self) -> Tensor:
        """Return how many tokens of prompt and response the next token is drawn from."""
        return self.prompt_lengths_B + self.lengths_B

    def next_uniforms(self) -> Tensor:
        """Return the uniform number of every row's next token; any for a finished row."""
        last = self.uniforms_BT.shape[1] - 1
        return self.uniforms_BT.gather(1, self.lengths_B.clamp(max=last)[:, None])[:, 0]

    def route(self, experts_BR: Tensor) -> None:
        """Keep where the token drawn last was sent; of a finished row this is never read."""
        places_B = (self.lengths_B - 1).clamp(min=0)
        self.experts_BTR[torch.arange(len(self)), places_B] = experts_BR

    def write(self, tokens_B: Tensor, logprobs_B: Tensor, stops: Tensor) -> None:
        """Append a token to every open row; it closes with a stop token or its last position."""
        places_B1 = self.lengths_B[:, None]
        self.tokens_BT.scatter_(1, places_B1, tokens_B[:, None].int())
        self.logprobs_BT.scatter_(1, places_B1, logprobs_B[:, None])
        self.lengths_B += self.is_open_B
        self.is_open_B &= self.lengths_B < self.uniforms_BT.shape[1]
        self.is_open_B &= torch.isin(tokens_B, stops, invert=True)
        self.last_B = tokens_B

    def completions(self, stops: Tensor) -> dict[int, Completion]:
        """Return what is written, by id of the response."""
        last_B = self.tokens_BT.gather(1, self.lengths_B[:, None] - 1)[:, 0]
        stopped = torch.isin(last_B, stops).tolist()
        tokens, logprobs = self.tokens_BT.cpu().numpy(), self.logprobs_BT.cpu().numpy()
        experts = self.experts_BTR.cpu().numpy()
        written = zip(self.ids_B.tolist(), self.lengths_B.tolist(), stopped, strict=True)
        return {
            row_id: Completion(
                tokens=tokens[row, :length],
                logprobs=logprobs[row, :length],
                finish_reason="stop" if stops_here else "length",
                experts=experts[row, : length - 1] if experts.shape[-1] else None,
            )
            for row, (row_id, length, stops_here) in enumerate(written)
        }
