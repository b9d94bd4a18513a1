"""Does each rule see what it forbids? A rule that cannot fail guards nothing."""

import pytest

from tests.tidy import rules


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (rules.too_long, "x = 1\n" * 401, "x = 1\n" * 400),
        (rules.wide_lines, "#" * 101, "#" * 100),
        (
            rules.long_functions,
            "def f():\n" + "    x = 1\n" * 70,
            "def f():\n" + "    x = 1\n" * 69,
        ),
        (rules.missing_docstring, "x = 1\n", '"""Why."""\nx = 1\n'),
        (rules.banned_name, "src/mantle/core/utils.py", "src/mantle/core/clock.py"),
        (rules.banned_name, "src/mantle/misc/clock.py", "tests/unit/test_database.py"),
    ],
)
def test_rule_tells_bad_from_good(rule, bad, good):
    assert rule(bad)
    assert not rule(good)


@pytest.mark.parametrize(
    "bad",
    [
        "try:\n    f()\nexcept Exception:\n    pass\n",
        "try:\n    f()\nexcept:\n    ...\n",
        "try:\n    f()\nexcept (ValueError, BaseException):\n    pass\n",
        "for x in y:\n    try:\n        f()\n    except Exception:\n        continue\n",
        "import contextlib\nwith contextlib.suppress(Exception):\n    f()\n",
    ],
)
def test_swallowed_exceptions_are_seen(bad):
    assert rules.swallowed_exceptions(bad)


def test_narrow_or_counted_exceptions_are_allowed():
    narrow = "try:\n    f()\nexcept OSError:\n    pass\n"
    counted = "try:\n    f()\nexcept Exception:\n    failures.inc()\n"
    assert not rules.swallowed_exceptions(narrow + counted)


@pytest.mark.parametrize(
    "bad",
    [
        "import time\ntime.sleep(0)\n",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n",
        "import asyncio\nasync def f():\n    await asyncio.sleep(pause)\n",
        "from time import sleep\n",
    ],
)
def test_sleeps_are_seen(bad):
    assert rules.sleeps(bad)


def test_a_turn_of_the_loop_is_no_sleep():
    assert not rules.sleeps("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n")


def test_foreign_places_are_seen():
    assert rules.foreign_places("index = https://" + "pypi" + ".org/simple")
    assert rules.foreign_places("path = '/work" + "/main'")
    assert not rules.foreign_places("see docs/work/plan.md and pypi")


def test_limit_without_reason_is_seen():
    assert rules.undocumented_limits("A: Final = 1\nB = 2\n")
    assert not rules.undocumented_limits('A: Final = 1\nB: Final = 2\n"""Why both."""\n')


def test_tests_are_counted():
    assert (
        rules.test_function_count("def test_a(): ...\nasync def test_b(): ...\ndef c(): ...") == 2
    )
