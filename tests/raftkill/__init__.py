"""Raft members as real processes that are killed without warning, and a check of what they promised before.

| module | what it is |
|---|---|
| `history` | what clients asked for and what they were told; pure |
| `checker` | compares a history with what the members hold in the end; pure |
| `toy`, `toy_machine` | the replicated state machine: a list with deduplication; pure |
| `control` | how a member is spoken to: JSON lines over loopback TCP |
| `processes` | start, kill, and leave nothing behind |
| `harness` | a cluster, its clients, and what kills it |
| `stock_member` | PySyncObj as it comes |
| `quire_member` | our own |
"""
