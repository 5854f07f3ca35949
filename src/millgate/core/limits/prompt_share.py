"""How many prompt tokens an engine reads for each token that it writes: what one stream costs all the others.

A stream that ends is followed by another whose prompt must be read, and meanwhile the next token of every other stream waits. So a
token costs its neighbours P tokens of prefill, and P is a property of the crowd: 0.6 where people chat, 4 to 7 in
conversations with documents, 57 where code is completed.
"""

from millgate.core.measure.ewma import Ewma

PROMPT_PER_OUTPUT = 4.0
"""Believed before anything is known: 1,020 to 211 and 1,155 to 211 tokens in mean, Azure's 2023 conversations, rounded."""
# A hundred windows: prompts come in lumps, and a share that moves would move the line that paces are compared along.
_MEMORY_WINDOWS = 100.0
# In the first windows nothing has ended that was let in, and what ends first is short.
_PRIOR_WINDOWS = 25.0


class PromptShare:
    """Prompt tokens to an output token, over the last hundred windows."""

    __slots__ = ("_answers", "_outputs", "_prompts")

    def __init__(self) -> None:
        self._answers = Ewma(0.0, memory=_MEMORY_WINDOWS, prior_samples=0.0)
        self._prompts = Ewma(0.0, memory=_MEMORY_WINDOWS, prior_samples=0.0)
        self._outputs = Ewma(0.0, memory=_MEMORY_WINDOWS, prior_samples=0.0)

    def add(self, answers: int, prompt_tokens: int, output_tokens: int) -> None:
        """Learn one window: the answers that ended in it, their prompts, and the tokens made in it, above 0."""
        self._answers.add(float(answers))
        self._prompts.add(float(prompt_tokens))
        self._outputs.add(float(output_tokens))

    def began_share(self, began: int, output_tokens: int) -> float:
        """Return how many answers began in a window to each that usually ends with so many tokens, above 0.

        1 where as many begin as end, and while none has ended. Counted and not weighed: only of an answer that has
        ended is it known how much of its prompt was cached.
        """
        ended = output_tokens * self._answers.mean
        return began * self._outputs.mean / ended if ended > 0.0 else 1.0

    def prompt_per_output(self) -> float:
        """Return how many prompt tokens are read for each output token."""
        windows = self._outputs.samples
        if not windows:
            return PROMPT_PER_OUTPUT
        measured = self._prompts.mean / self._outputs.mean
        return (_PRIOR_WINDOWS * PROMPT_PER_OUTPUT + windows * measured) / (_PRIOR_WINDOWS + windows)
