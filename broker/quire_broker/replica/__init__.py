"""What replicas of a partition decide: pure. docs/REPLICATION.md has the invariants.

Of each partition that it holds a broker has either a `LeaderCore`, of one leader epoch, or a `FollowerCore`. Events
go in, with the time; effects come out, to be carried out in their order before the next event. Logs are read through
`LogView`, at the moment of the event, so that a core never counts on what is not there.
"""
