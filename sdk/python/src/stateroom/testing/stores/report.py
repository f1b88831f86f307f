"""What came of a run of the suite.

This module owns the shapes of results and how they are shown. It promises that no reason holds a value of an item that
the suite did not make itself.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TextIO

Outcome = Literal["passed", "failed", "skipped"]
HalfName = Literal["async", "blocking"]
_SIGNS: dict[Outcome, str] = {"passed": "✓", "failed": "✗", "skipped": "-"}


@dataclass(frozen=True)
class CaseResult:
    """What came of one case in one half of a store's methods.

    Attributes:
        name: The case's name.
        group: What it is about.
        half: Which methods it used: the asynchronous or the blocking ones.
        claim: What it claims of a store.
        outcome: What came of it.
        reason: Why it failed or was skipped; empty where it passed.
    """

    name: str
    group: str
    half: HalfName
    claim: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class StoreReport:
    """What came of all cases, in the order they were run.

    Attributes:
        store: The name of the store's class.
        results: What came of each case in each half.
    """

    store: str
    results: tuple[CaseResult, ...]

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """Those that failed."""
        return tuple(each for each in self.results if each.outcome == "failed")

    @property
    def skipped(self) -> tuple[CaseResult, ...]:
        """Those that were not run, or that the store says it does not support."""
        return tuple(each for each in self.results if each.outcome == "skipped")

    def passed_all(self) -> bool:
        """Whether there is none that failed, and at least one that passed."""
        return not self.failed and any(each.outcome == "passed" for each in self.results)

    def failures(self) -> list[str]:
        """What failed and why, a line each."""
        return [f"{each.half} {each.group}/{each.name}: {each.reason}" for each in self.failed]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, by groups."""
        return {
            "store": self.store,
            "passed_all": self.passed_all(),
            "counts": dict(_counts(self.results)),
            "results": [
                {
                    "name": each.name,
                    "group": each.group,
                    "half": each.half,
                    "claim": each.claim,
                    "outcome": each.outcome,
                    "reason": each.reason,
                }
                for each in self.results
            ],
        }

    def print_report(self, to: TextIO | None = None) -> None:
        """Show the report, a line for each group and for each case that failed.

        Args:
            to: Where to; left out: standard output.
        """
        lines = [f"Store: {self.store}"]
        for group in dict.fromkeys(each.group for each in self.results):
            own = [each for each in self.results if each.group == group]
            shown = ", ".join(f"{count} {outcome}" for outcome, count in _counts(own).items())
            lines.append(f"  {_SIGNS[_worst(own)]} {group}: {shown}")
            lines += [f"      {each.half} {each.name}: {each.reason}" for each in own if each.outcome == "failed"]
        (to or sys.stdout).write("\n".join(lines) + "\n")


def _counts(results: Iterable[CaseResult]) -> Counter[str]:
    return Counter(each.outcome for each in results)


def _worst(results: Iterable[CaseResult]) -> Outcome:
    found = {each.outcome for each in results}
    return "failed" if "failed" in found else "passed" if "passed" in found else "skipped"
