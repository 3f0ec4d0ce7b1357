"""What joins the controller to the world beside the disk and the peer link.

metrics    what a member counts and measures, for Prometheus
members    asks the other controllers, over gRPC
thread     runs what blocks, off the loop
"""
