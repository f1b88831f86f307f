"""An agent that remembers a dozen facts, and in another process finds the right ones by what they mean, offline.

Owns the facts and LangGraph's store that keeps them. Texts become vectors on this side, by a model that needs no
network (`offline_embedding.py`); the gateway seals both. It needs ``STATEROOM_URL`` and ``STATEROOM_API_KEY``:

    set -a; . .stateroom/env; set +a
    uv run --group demo python examples/memory_agent.py remember
    uv run --group demo python examples/memory_agent.py recall "Which exhibition would she enjoy?"

Every event is one line of JSON on stdout. Without the model, the only one says what is missing.
"""

import argparse
import json
from typing import Any

from langgraph.store.base import PutOp
from offline_embedding import NotInstalledError, OfflineEmbedding

from stateroom.langgraph import StateroomStore

PATH = ("memories", "ada")
FACTS = {
    "seat": "Ada likes to sit by the window of a plane",
    "diet": "She does not eat meat or fish",
    "hotel": "A quiet room far from the street is what she sleeps best in",
    "budget": "A trip may cost two thousand euros at most",
    "museum": "She loves modern art and old maps",
    "morning": "Never plan anything before ten o'clock",
    "knee": "Long walks hurt her left knee",
    "dog": "Her dog Turing stays with a neighbour while she is away",
    "passport": "Her passport expires in March",
    "sister": "Her sister Grace lives in Porto",
    "allergy": "Peanuts make her ill",
    "bills": "Bills are paid with the company's credit card",
}


def say(event: str, **members: Any) -> None:
    """Print an event."""
    print(json.dumps({"event": event, **members}), flush=True)


def remember(store: StateroomStore) -> None:
    """Put all facts, in one request."""
    store.batch([PutOp(PATH, key, {"text": text}) for key, text in FACTS.items()])
    say("remembered", facts=FACTS)


def recall(store: StateroomStore, questions: list[str]) -> None:
    """Find the facts that are nearest to each question."""
    for question in questions:
        found = store.search(PATH, query=question, limit=2)
        hits = [{"key": each.key, "text": each.value["text"], "score": each.score} for each in found]
        say("recalled", question=question, hits=hits)


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--subject", default="user-42")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("remember")
    commands.add_parser("recall").add_argument("questions", nargs="+")
    arguments = parser.parse_args()
    try:
        embedding = OfflineEmbedding()
    except NotInstalledError as missing:
        say("not-installed", missing=str(missing))
        return
    index = {"dims": embedding.dims, "embed": embedding, "fields": ["text"], "model": embedding.model}
    with StateroomStore.from_env(subject=arguments.subject, index=index) as store:
        if arguments.command == "remember":
            remember(store)
        else:
            recall(store, arguments.questions)


if __name__ == "__main__":
    main()
