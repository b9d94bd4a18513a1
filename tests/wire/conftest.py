"""The official clients, pointed at a real server on the small real model."""

import anthropic
import openai
import pytest

from tests.running_server import start_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = start_server(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture
def openai_client(server):
    return openai.OpenAI(
        base_url=f"{server.base_url}/v1",
        api_key=server.api_key,
        max_retries=0,
        _strict_response_validation=True,
    )


@pytest.fixture
def anthropic_client(server):
    return anthropic.Anthropic(
        base_url=server.base_url,
        api_key=server.api_key,
        max_retries=0,
        _strict_response_validation=True,
    )
