"""What the broker serves over gRPC: from messages to partitions and back.

produce     Produce, ProduceStream
fetch       Fetch, ListOffsets
subscribe   Subscribe
follow      FollowTopics
forward     ControllerAdminService, passed on to the controllers
broker      the service that has them all
"""
