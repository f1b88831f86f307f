"""An agent that talks for long and keeps its context short; its whole conversation stays in the history."""

from typing import Any

from stateroom import Client

MESSAGES_MAX = 12
KEEP_LAST = 4
TURNS = 20


def summarise(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What a model would write; here, how much there was."""
    covered = sum(each.get("covers", 1) for each in messages)
    return {"role": "system", "text": f"{covered} messages ago, we began.", "covers": covered}


def main() -> None:
    """Talk, and compact whenever the conversation is too long."""
    with Client.from_env(subject="user-42") as client:
        thread = client.thread("long-talk", agent="talker")
        head = thread.load()
        messages = head.state["messages"] if head else []
        for turn in range(TURNS):
            messages.append({"role": "user", "text": f"question {turn}"})
            messages.append({"role": "assistant", "text": f"answer {turn}"})
            thread.save({"messages": messages})
            if len(messages) > MESSAGES_MAX:
                thread.compact("messages", keep_last=KEEP_LAST, summary=[summarise(messages[:-KEEP_LAST])])
                head = thread.load()
                messages = head.state["messages"] if head else []
        compactions = list(thread.history(source="compact"))
        whole = max(len(thread.at(each.parent_id).state["messages"]) for each in compactions if each.parent_id)
        print(f"{TURNS} turns, {len(compactions)} compactions, {len(messages)} messages in the state")
        print(f"first: {messages[0]['text']}")
        print(f"the longest list in the history: {whole}")


if __name__ == "__main__":
    main()
