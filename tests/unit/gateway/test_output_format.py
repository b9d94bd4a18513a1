"""Is what the output must look like enforced to the letter, or refused by name, on every route?"""

import json

import pytest

from tests.unit.gateway.gateway_fakes import Harness

STRING = {"type": "string"}
PERSON = {"type": "object", "properties": {"name": STRING}, "required": ["name"]}


def response_format(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


def asked_grammars(gateway):
    return [ask.grammar for ask in gateway.admission.asks]


ENFORCED = [
    ("chat", {"response_format": response_format(PERSON, strict=True)}, "name"),
    ("chat", {"response_format": response_format(PERSON)}, "name"),
    ("chat", {"response_format": {"type": "json_object"}}, "object"),
    ("chat", {"guided_json": PERSON}, "name"),
    ("chat", {"structured_outputs": {"regex": "[0-9]+"}}, "[0-9]+"),
    ("chat", {"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
    ("chat", {"structured_outputs": {"json_object": True}}, "object"),
    ("chat", {"guided_grammar": 'start: "a"'}, "start"),
    ("completions", {"guided_regex": "[0-9]+"}, "[0-9]+"),
    ("completions", {"guided_choice": ["yes"]}, "yes"),
    ("messages", {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}}, "name"),
    ("messages", {"output_format": {"type": "json_schema", "schema": PERSON}}, "name"),
]


@pytest.mark.parametrize(("route", "fields", "mark"), ENFORCED)
async def test_format_reaches_the_request_as_a_grammar(gateway: Harness, route, fields, mark):
    gateway.script(["{}"])
    reply = await getattr(gateway, route)(**fields)
    assert reply.status == 200
    (grammar,) = asked_grammars(gateway)
    assert mark in grammar


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}]
)
async def test_no_format_is_no_grammar(gateway: Harness, fields):
    gateway.script(["x"])
    await gateway.chat(**fields)
    assert asked_grammars(gateway) == [""]


SCHEMA = "response_format.json_schema.schema"
REFUSED = [
    ("chat", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ("chat", {"response_format": {"type": "xml"}}, "response_format.type"),
    ("chat", {"response_format": {}}, "response_format.type"),
    ("chat", {"response_format": "json"}, "response_format"),
    ("chat", {"response_format": response_format(None)}, SCHEMA),
    ("chat", {"response_format": response_format({"type": 123})}, SCHEMA),
    ("chat", {"response_format": response_format({"$ref": "#/nope"})}, SCHEMA),
    ("chat", {"response_format": response_format({"type": "hiccup"})}, SCHEMA),
    ("chat", {"response_format": response_format({"not": STRING}, strict=True)}, SCHEMA),
    (
        "chat",
        {"response_format": response_format({"type": "string", "pattern": "(?=x)y"})},
        SCHEMA,
    ),
    (
        "chat",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}},
        "response_format.json_schema.name",
    ),
    ("chat", {"guided_regex": "(a"}, "guided_regex"),
    ("chat", {"guided_choice": []}, "guided_choice"),
    ("chat", {"guided_choice": "a"}, "guided_choice"),
    ("chat", {"guided_regex": "a", "guided_json": PERSON}, "guided_regex"),
    (
        "chat",
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "guided_regex",
    ),
    ("chat", {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ("messages", {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    (
        "messages",
        {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
        "output_config.format.schema",
    ),
]


@pytest.mark.parametrize(("route", "fields", "param"), REFUSED)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_cannot_be_enforced_is_400_with_its_field(
    gateway: Harness, route, fields, param, stream
):
    reply = await getattr(gateway, route)(**fields, stream=stream)
    assert reply.status == 400, reply.body
    assert f"'{param}'" in reply.json()["error"]["message"]
    assert asked_grammars(gateway) == []
    if route == "chat":
        assert reply.json()["error"]["param"] == param


async def test_refusal_names_pointer_and_keyword(gateway: Harness):
    schema = {"type": "object", "properties": {"a": {"not": STRING}}}
    reply = await gateway.chat(response_format=response_format(schema, strict=True))
    message = reply.json()["error"]["message"]
    assert "/properties/a/not" in message
    assert reply.json()["error"]["code"] == "invalid_json_schema"


async def test_what_a_schema_that_is_not_strict_loses_is_said(gateway: Harness):
    gateway.script(["[]"])
    schema = {"type": "array", "items": STRING, "uniqueItems": True}
    reply = await gateway.chat(response_format=response_format(schema))
    assert reply.status == 200
    assert "uniqueItems" in reply.headers["x-mantle-schema-ignored"]
    strict = await gateway.chat(response_format=response_format(schema, strict=True))
    assert strict.status == 400


async def test_endlessly_nested_schema_is_400(gateway: Harness):
    depth = 5_000
    schema = '{"items":' * depth + "{}" + "}" * depth
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    body = body[:-1] + ', "guided_json": ' + schema + "}"
    reply = await gateway.call("/v1/chat/completions", body.encode())
    assert reply.status == 400
