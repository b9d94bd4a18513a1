from fakes import Harness, chat_text, message_text


async def test_a(gateway: Harness):
    r = await gateway.chat(stream=True, stream_options={"include_usage": True})
    print(r.status, r.headers, r.body.decode())
    r = await gateway.chat()
    print(r.status, r.headers, r.body.decode())
    r = await gateway.messages(stream=True)
    print(r.status, r.headers, r.body.decode())
    r = await gateway.messages()
    print(r.body.decode())
    r = await gateway.completions(echo=True, logprobs=2)
    print(r.body.decode())
    r = await gateway.completions(echo=True, logprobs=2, stream=True)
    print(r.body.decode())
    r = await gateway.get("/v1/models")
    print(r.body.decode())
    print(gateway.metrics.seen)
    assert 0
