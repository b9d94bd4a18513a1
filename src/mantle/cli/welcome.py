"""What does a newcomer need to see? The lines that make a client work, ready to paste."""

from collections.abc import Sequence


def welcome(host: str, port: int, *, models: Sequence[str], new_key: str | None) -> str:
    """The text printed at start; `new_key` is shown this one time."""
    base = base_url_of(host, port)
    model = models[0] if models else "MODEL"
    key = new_key or "YOUR_KEY"
    lines = [
        "",
        f"Mantle listens on {base}   models: {', '.join(models) or 'none yet (mantle models add)'}",
        "",
    ]
    if new_key:
        lines += ["  A tenant 'default' was made. Its API key is shown only this once:", ""]
    else:
        lines += ["  Keys were shown when they were made; `mantle tenants key ID` makes one.", ""]
    lines += [
        f"  export OPENAI_BASE_URL={base}/v1 OPENAI_API_KEY={key}",
        f"  export ANTHROPIC_BASE_URL={base} ANTHROPIC_API_KEY={key}",
        "",
        f"  curl -N {base}/v1/chat/completions -H 'Authorization: Bearer {key}' \\",
        "    -H 'Content-Type: application/json' \\",
        f'    -d \'{{"model": "{model}", "stream": true,',
        '         "messages": [{"role": "user", "content": "Tell me about the sea."}]}\'',
        "",
        "  Stop with Ctrl-C.",
        "",
    ]
    return "\n".join(lines)


def base_url_of(host: str, port: int) -> str:
    """How a server that listens there is reached from the same machine."""
    shown_host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://[{shown_host}]:{port}" if ":" in shown_host else f"http://{shown_host}:{port}"
