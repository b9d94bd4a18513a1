"""What happened, in order? Lines for people, of a run that is replayed."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class EventLog:
    """Keeps the lines of one run."""

    lines: list[str] = field(default_factory=list)

    def add(self, at_ms: float, what: str, detail: str) -> None:
        self.lines.append(f"{at_ms:12.1f} ms  {what:<14} {detail}")
