"""What is logged, and how? One line a committed decision, as text or JSON, never with content."""

import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `extra` fields become keys."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A line for people: time, level, message, then `extra` fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {k}={v}" for k, v in vars(record).items() if k not in _STANDARD)
        text = (
            f"{_rfc3339(record.created)} {record.levelname.lower():7} "
            f"{record.name}: {record.getMessage()}{extra}"
        )
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up_logging(*, level: str, as_json: bool) -> None:
    """Send Mantle's and the server library's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel("WARNING")


def _rfc3339(wall_s: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s))
    return f"{whole}.{int(wall_s % 1 * 1_000):03d}Z"
