"""Questions of graphs as approvals, answers for graphs, and the gate before what a graph does."""
