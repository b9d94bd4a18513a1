"""What prompt does a model's own chat template make of these messages?

Invariant: the text is byte for byte what transformers renders, within named limits of time and
size; a template that breaks or runs away fails its request and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from jinja2 import Template, TemplateError

from mantle.core import limits
from mantle.core.errors import EngineFailed, InvalidRequest
from mantle.text.port import ChatMessage
from mantle.text.render_budget import BudgetExceeded, RenderBudget
from mantle.text.template_sandbox import TemplateEnvironment, TemplateRefusal

REFUSAL_CHARS_MAX: Final = 500
REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning")

_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # RecursionError too
    SyntaxError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """One model's template, compiled once. Thread-safe.

    `render` raises `InvalidRequest` when the template itself refuses the messages and
    `EngineFailed` when it is broken or over its limits.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_text: str = "",
        eos_text: str = "",
        now: Callable[[], datetime] = datetime.now,
        seconds_max: float = limits.TEMPLATE_RENDER_S_MAX,
        chars_max: int = limits.TEMPLATE_OUTPUT_CHARS_MAX,
    ) -> None:
        self._constants = {"bos_token": bos_text, "eos_token": eos_text}
        self._seconds_max = seconds_max
        self._chars_max = chars_max
        self._environment = TemplateEnvironment(now)
        if len(source) > limits.TEMPLATE_SOURCE_CHARS_MAX:
            raise EngineFailed("the model's chat template is too long")
        try:
            with self._environment.budgeted(self._new_budget()):
                code = self._environment.compile_template(source)
        except _TEMPLATE_FAULTS as error:
            raise _broken(error) from None
        variables = self._environment.make_globals(None)
        self._template = Template.from_code(self._environment, code, variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages` (see `template_message`)."""
        variables = {
            "documents": None,
            **self._constants,
            **(template_kwargs or {}),
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        budget = self._new_budget()
        try:
            with self._environment.budgeted(budget):
                return budget.joined("", self._template.generate(variables))
        except TemplateRefusal as refusal:
            reason = (refusal.message or "no reason given")[:REFUSAL_CHARS_MAX]
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {reason}", param="messages"
            ) from None
        except _TEMPLATE_FAULTS as error:
            raise _broken(error) from None

    def _new_budget(self) -> RenderBudget:
        return RenderBudget(seconds=self._seconds_max, chars_max=self._chars_max)


def template_message(message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it: no missing content, reasoning under its usual names."""
    shown = {key: value for key, value in message.extra.items() if value is not None}
    reasoning = next((shown[key] for key in REASONING_KEYS if key in shown), None)
    if reasoning is not None:
        shown = {"thinking": reasoning, **shown, "reasoning_content": reasoning}
    return {"role": message.role, "content": message.content or "", **shown}


def _broken(error: BaseException) -> EngineFailed:
    """What the client may know: which kind of fault, nothing of the template or the machine."""
    if isinstance(error, BudgetExceeded):
        return EngineFailed(
            "the model's chat template exceeds its limits of time or size",
            hint="send fewer or shorter messages; otherwise the model file is at fault",
        )
    return EngineFailed(
        "the model's chat template failed on these messages",
        hint="check that roles and contents suit the model; otherwise the model file is at fault",
    )
