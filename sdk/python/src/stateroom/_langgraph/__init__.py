"""The parts of the LangGraph saver: what of a graph becomes columns and values, runs, listings, connections."""
