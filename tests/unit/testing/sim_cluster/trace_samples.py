"""Small traces in the public formats, so that no test needs the real ones."""

import json
from pathlib import Path


def azure(folder: Path) -> Path:
    path = folder / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.6805900,396,0\n"
    )
    return path


def mooncake(folder: Path) -> Path:
    lines = [
        {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 10, "output_length": 5, "hash_ids": [0]},
    ]
    path = folder / "mooncake.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def arena(folder: Path, *, requests: int = 4) -> Path:
    rows = "".join(f"{i * 0.5},{i % 2},{10 + i},{20 + i}\n" for i in range(requests))
    path = folder / "arena.csv"
    path.write_text("req_time_s,client,prompt_tokens,output_tokens\n" + rows)
    return path


def servegen(folder: Path) -> Path:
    """Client 1 is busy, client 2 quiet and without lengths; the second window is busier."""
    rates = "t_s,client,rate_rps,cv,pattern,param1,param2\n" + "".join(
        f"{t},{client},{rate},{cv},Gamma,1,1\n"
        for t, client, rate, cv in (
            (0, 1, 1.0, 1.0), (600, 1, 8.0, 2.0), (600, 2, 0.5, 1.0), (1200, 1, 0.2, 1.0),
        )
    )  # fmt: skip
    quantiles = {"0": [10, 20, 30], "1200": [500, 500, 500]}
    lengths = {
        "note": "",
        "clients": {"1": {"input_tokens": quantiles, "output_tokens": quantiles}},
    }
    (folder / "s_lengths.json").write_text(json.dumps(lengths))
    path = folder / "s_rates.csv"
    path.write_text(rates)
    return path
