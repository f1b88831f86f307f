"""An agent without a framework: it saves after every step, resumes where it stopped, and repeats nothing.

Needs ``STATEROOM_URL`` and ``STATEROOM_API_KEY``. Run it twice with ``--stop-after 1`` and once without: each run goes
on where the last one ended, and every item is carried out once.

    set -a; . .stateroom/env; set +a
    python examples/plain_agent.py trip-8 --stop-after 1
    python examples/plain_agent.py trip-8
"""

import argparse
from dataclasses import dataclass

from stateroom import Client


@dataclass
class Trip:
    """The agent's state. Any dataclass, msgspec struct, pydantic model or dict will do."""

    plan: list[str]
    done: list[str]


def carry_out(item: str) -> str:
    """Do one thing that must not be done twice."""
    print(f"doing {item}", flush=True)
    return f"{item}: booked"


def main() -> None:
    """Run the agent until its plan is done, or until it is told to stop."""
    parser = argparse.ArgumentParser(description="An agent without a framework.")
    parser.add_argument("thread_id")
    parser.add_argument("--subject", default="user-42", help="whose trip it is")
    parser.add_argument("--stop-after", type=int, default=100, metavar="N", help="end after N items")
    chosen = parser.parse_args()

    with Client.from_env(subject=chosen.subject) as client:
        thread = client.thread(chosen.thread_id, agent="plain", state_type=Trip)
        head = thread.load()  # None when the thread is new
        trip = head.state if head else Trip(plan=["flight", "hotel", "dinner"], done=[])
        for item in trip.plan[len(trip.done) :][: chosen.stop_after]:
            trip.done.append(thread.once(item, carry_out, item))
            thread.save(trip)  # HeadMoved if another process saved meanwhile
        if len(trip.done) == len(trip.plan):
            thread.save(trip, status="done")
        for old in thread.history():
            print(f"step {old.step} {old.status} {old.checkpoint_id}")


if __name__ == "__main__":
    main()
