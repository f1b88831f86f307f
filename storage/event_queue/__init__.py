"""The queue of events: what verbs that write add to, each in its own transaction; `storage.events` reads it."""
