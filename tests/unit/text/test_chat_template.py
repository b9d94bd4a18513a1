"""Chat templates: the same bytes as transformers, and nothing that a hostile file asks for."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mantle.core.errors import EngineFailed, InvalidRequest
from mantle.text.chat_template import ChatTemplate, template_message
from mantle.text.llama_library import VocabularyFile
from mantle.text.port import ChatMessage

CONVERSATION = [
    {"role": "system", "content": "Be <brief> & kind.\n"},
    {"role": "user", "content": "  Naïve café? 🌊🏖️ 漢字\n\nLine two  "},
    {"role": "assistant", "content": "'Yes' \"no\" {{ not code }} {% nor this %}"},
    {"role": "user", "content": ""},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Météo <b>&</b> 'quotes'",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
PLAIN = """{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim }}
    {{- '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WITH_TOOLS = """{{ bos_token }}{%- if tools %}# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}
{{ tool | tojson(indent=4, separators=(',', ': '), sort_keys=true) }}
{%- endfor %}{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"""
LOOP_CONTROLS = """{%- for m in messages %}
{%- if m.role == 'system' %}{% continue %}{% endif %}
{%- if loop.index > 3 %}{% break %}{% endif %}
{{ loop.index0 }}/{{ loop.length }} {{ m.content }}{% if not loop.last %},{% endif %}
{%- endfor %}"""
GENERATION = """{% for m in messages %}{% if m.role == 'assistant' %}
{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}
{% else %}{{ m.content }}
{% endif %}{% endfor %}"""
NAMESPACES = """{%- set ns = namespace(last=-1, text='') %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- set ns.text = ns.text ~ loop.index ~ m.role ~ '; ' %}{% endfor %}
{%- macro show(m, sep=' | ') %}{{ m.role ~ sep ~ m.content[:5] }}{% endmacro %}
{{ ns.last }} {{ ns.text }} {{ show(messages[-2]) }} {{ dict(a=1, b=[1, 'x', none]) }}
{{ messages | map(attribute='role') | unique | join(', ') }} {{ messages | length }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 'a-b'.split('-') }}
{{ (messages[1:] | first).content.strip().replace('é', 'e') }} {{ '%s=%d' | format('n', 3) }}
{{ 'x' * 3 }} {{ 7 // 2 }} {{ 2 ** 5 }} {{ '{}-{}'.format(1, 'z') }} {{ [1, 2] + [3] }}
{{ {'k': messages[0].role, 'v': (1, messages[1].role)} }} {{ missing is defined }} {{ missing }}"""
KWARGS = """{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{{ documents }} {{ tools }} {{ add_generation_prompt }}{{ strftime_now('%Y') }}"""


def both(source: str, **variables: Any) -> tuple[str, str]:
    """(ours, transformers')"""
    from transformers.utils.chat_template_utils import render_jinja_template

    tools = variables.pop("tools", None)
    add_generation_prompt = variables.pop("add_generation_prompt", True)
    template = ChatTemplate(source, bos_text="<s>", eos_text="</s>")
    ours = template.render(
        [template_message(ChatMessage(m["role"], m["content"])) for m in CONVERSATION],
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        template_kwargs=variables,
    )
    theirs, _ = render_jinja_template(
        conversations=[CONVERSATION],
        tools=tools,
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
        **variables,
    )
    return ours, theirs[0]


@pytest.mark.parametrize(
    "source", [PLAIN, WITH_TOOLS, LOOP_CONTROLS, GENERATION, NAMESPACES, KWARGS]
)
@pytest.mark.parametrize(
    "variables",
    [{}, {"tools": TOOLS, "add_generation_prompt": False}, {"enable_thinking": False}],
)
def test_text_is_byte_for_byte_that_of_transformers(source: str, variables: dict[str, Any]) -> None:
    ours, theirs = both(source, **variables)
    assert ours == theirs


@pytest.mark.model
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_shipped_model_renders_as_in_transformers(
    demo_weights: Path, add_generation_prompt: bool
) -> None:
    with VocabularyFile(demo_weights) as file:
        source = file.chat_template()
    assert source is not None
    ours, theirs = both(source, add_generation_prompt=add_generation_prompt)
    assert ours == theirs
    assert "漢字" in ours


def test_date_comes_from_the_injected_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %B %Y') }}", now=lambda: datetime(2026, 12, 1))
    assert template.render([]) == "01 December 2026"


def test_missing_content_is_empty_and_reasoning_has_its_usual_names() -> None:
    message = template_message(ChatMessage("assistant", None, {"reasoning": "r", "name": None}))
    assert message["content"] == ""
    assert (message["reasoning_content"], message["thinking"]) == ("r", "r")
    assert "name" not in message


def test_refusal_by_the_template_blames_the_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render([])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.nothing.at_all }}",
        "{{ 1 + 'x' }}",
        "{{ 1 / 0 }}",
        "{{ [][3] + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'other' %}",
    ],
)
def test_broken_template_fails_its_request_without_internals(source: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(EngineFailed) as caught:
        template.render([])
    assert "chat template failed" in caught.value.message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("source", ["{% for %}", "{{ " + "(" * 9999 + " }}", "{{ x }}" * 99_999])
def test_template_that_cannot_be_compiled_is_refused_when_the_model_loads(source: str) -> None:
    with pytest.raises(EngineFailed):
        ChatTemplate(source)


GROWTH = "{% set ns = namespace(t='x' * 1000) %}{% for i in range(99) %}"
TOWER = "{% set ns = namespace(t=[1]) %}{% for i in range(99) %}{% set ns.t = [ns.t, ns.t] %}"


@pytest.mark.parametrize(
    "source",
    [
        # time
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
        "{% for i in 'x' * 9999 recursive %}{{ loop('x' * 9999) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ range(99999) | map('string') | list | join | list | sort | join | list | length }}"
        "{% for i in range(99999) %}{{ range(99999) | list | sort | length }}{% endfor %}",
        # text
        "{{ 'x' * 10 ** 12 }}",
        "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        GROWTH + "{% set ns.t = ns.t + ns.t %}{% endfor %}",
        GROWTH + "{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        GROWTH + "{% set ns.t = ns.t | replace('x', ns.t) %}{% endfor %}",
        GROWTH + "{% set ns.t = ns.t.replace('x', ns.t) %}{% endfor %}",
        GROWTH + "{% set ns.t = ns.t.join(ns.t) %}{% endfor %}",
        GROWTH + "{% set ns.t = ns.t | list | join(ns.t) %}{% endfor %}",
        GROWTH + "{% set ns.t = '%s%s' % (ns.t, ns.t) %}{% endfor %}",
        GROWTH + "{% set ns.t = '{0}{0}'.format(ns.t) %}{% endfor %}",
        GROWTH + "{% set ns.t = [ns.t, ns.t] | string %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'.zfill(1000000000) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ 'x\\ty'.expandtabs(1000000000) }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ {'a': {'b': 1}} | tojson(indent=1000000000) }}",
        "{{ range(99999) | list | tojson(separators=('x' * 9999, ':')) }}",
        "{{ lipsum(1000000) }}",
        # nested values
        TOWER + "{% endfor %}{{ ns.t }}",
        TOWER + "{% endfor %}{{ ns.t | tojson }}",
        TOWER + "{% endfor %}{{ ns.t == ns.t }}",
        "{{ [0] * 10 ** 12 }}",
        "{{ [[0] * 9999] * 9999 }}",
        "{{ ('a' * 9999999) | list | length }}",
        "{{ ('a ' * 9999999).split() | length }}",
        "{{ ('a,' * 9999999).split(',') | length }}",
        # the way out
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ('' | attr('__class__')).mro() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ messages.append(1) }}",
        "{{ 'x'.translate({120: 'y' * 999}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{{ range }}",
    ],
)
def test_hostile_template_is_stopped_within_its_limits(source: str) -> None:
    template = ChatTemplate(source, seconds_max=0.3, chars_max=4_000_000)
    with pytest.raises(EngineFailed):
        template.render([{"role": "user", "content": "x"}])


def test_long_ordinary_messages_stay_within_the_limits() -> None:
    template = ChatTemplate(PLAIN + "{{ messages[0].content.split('\n') | length }}")
    content = "A line of a long document.\n" * 100_000
    assert content.strip() in template.render([{"role": "user", "content": content}])
