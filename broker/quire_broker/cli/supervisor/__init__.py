"""Keeps the processes of nodes running: what `quire up` and `quire node` stand on.

keeper     the supervisor: starts, watches, starts again, stops in order
roles      what there is to keep, from a node's configuration
restarts   whether and when to start again (pure)
child      one process
leash      what a child runs first, so that it does not outlive its supervisor
health     asks a side door whether a process does its work
crash      tells the controllers that a broker has died
logfile    the files that children write their logs to, and their last words
ports      who has a port
"""
