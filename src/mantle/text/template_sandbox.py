"""How does a template from a model file run without being trusted?

Jinja's immutable sandbox with what transformers adds, and every loop turn, call, filter, operator
and literal bound to a `RenderBudget`. Invariant: outside `budgeted()` no template code runs.

What stays uncovered: one C call on a text near the limit cannot be interrupted (milliseconds each),
and a hostile template may hold the output limit `TEMPLATE_SCRATCH_FACTOR` times over in memory.
"""

import functools
import json
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from jinja2 import Environment, TemplateError, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from mantle.text.amplifiers import check_filter, check_method
from mantle.text.render_budget import RenderBudget

DROPPED_FILTERS: Final = ("pprint", "random", "urlize", "wordwrap", "xmlattr", "filesizeformat")
DROPPED_GLOBALS: Final = ("lipsum",)
UNSAFE_METHODS: Final = frozenset({"translate", "expandtabs", "to_bytes", "format_map"})


class TemplateRefusal(TemplateError):
    """The template called `raise_exception`: the messages do not suit the model."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates. Thread-safe: the budget belongs to the thread."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self._thread = threading.local()
        self.finalize = self._printed
        self.filters.update(tojson=_tojson, join=_join)
        for name in DROPPED_FILTERS:
            del self.filters[name]
        self.filters = {name: self._bounded(name, f) for name, f in self.filters.items()}
        for name in DROPPED_GLOBALS:
            del self.globals[name]
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=lambda pattern: now().strftime(pattern),
            dict=_TemplateDict(),
            namespace=_TemplateNamespace,
        )

    @contextmanager
    def budgeted(self, budget: RenderBudget) -> Iterator[None]:
        """Run template code of this thread at the expense of `budget`."""
        self._thread.budget = budget
        try:
            yield
        finally:
            del self._thread.budget

    def compile_template(self, source: str) -> "types.CodeType":
        """Parse, bind every construct to the budget, compile."""
        tree = _BudgetHooks().visit(self.parse(source))
        tree.set_environment(self)
        code = self.compile(tree)
        assert isinstance(code, types.CodeType)
        return code

    @property
    def budget(self) -> RenderBudget:
        found = self._thread.budget
        assert isinstance(found, RenderBudget)
        return found

    # --- called by compiled templates -----------------------------------------------------------
    def turn(self) -> None:
        """One turn of a loop or macro; `call` looks at the clock."""

    def weigh(self, value: object) -> object:
        """A list or dictionary that the template has just written down; `call` counts it."""
        return value

    def join_parts(self, *parts: object) -> str:
        """The `~` operator."""
        return self.budget.joined("", parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        if operator == "*":
            budget.before_multiply(left, right)
        elif operator == "**":
            budget.before_power(left, right)
        elif operator == "%" and isinstance(left, str | bytes):
            budget.before_format(left, right)
        return budget.charge(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = self.budget
        budget.tick()
        method = getattr(obj, "__wrapped__", obj)
        if isinstance(method, types.BuiltinMethodType | types.MethodType):
            args = check_method(budget, method, args, kwargs)
        return budget.charge(super().call(context, obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in UNSAFE_METHODS and super().is_safe_attribute(obj, attr, value)

    def _printed(self, value: Any) -> Any:
        """What `{{ … }}` is about to turn into text."""
        if isinstance(value, list | tuple | dict):
            self.budget.charge(value)
        elif not isinstance(value, str | int | float | Undefined | types.NoneType):
            raise SecurityError("only plain values can be printed")
        return value

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        values_from = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.tick()
            check_filter(budget, name, args[values_from:], kwargs)
            return budget.charge(function(*args, **kwargs))

        return bounded


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` passes through: it marks training targets."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("passed"), [], [], body).set_lineno(line)

    def passed(self, caller: Callable[[], str]) -> str:
        return caller()


class _BudgetHooks(NodeTransformer):
    """Adds a call to the environment wherever a template can loop or build something."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _turn(node))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _turn(node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _hook("join_parts", node.nodes, node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _weighed(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _weighed(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _weighed(node, [pair.value for pair in node.items])


def _hook(name: str, arguments: list[nodes.Expr], node: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=node.lineno)
    return nodes.Call(function, arguments, [], None, None, lineno=node.lineno)


def _turn(node: nodes.Node) -> nodes.Node:
    return nodes.ExprStmt(_hook("turn", [], node), lineno=node.lineno)


def _weighed(node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Node:
    is_constant = all(isinstance(item, nodes.Const | nodes.TemplateData) for item in items)
    return node if is_constant else _hook("weigh", [node], node)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it; Jinja's own escapes HTML, which breaks tool prompts."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@pass_environment
def _join(
    environment: Environment,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    """Jinja's `join` for templates without autoescape, bounded while it runs."""
    assert isinstance(environment, TemplateEnvironment)
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return environment.budget.joined(str(d), value)


class _TemplateDict:
    """`dict(…)` without the type's own attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """`namespace(…)` that stores no underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=…)` works
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a namespace cannot store underscore-prefixed attributes")
