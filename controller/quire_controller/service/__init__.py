"""The controller over gRPC. Translates, and decides nothing: requests to commands, results to responses.

calls      from callbacks to coroutines, with the caller's deadline
changes    a request that changes something, to a command that is carried out once
lookups    what a request means, and the checks that need no quorum
brokers    ControllerService
watching   WatchMetadata: what one who follows is sent next
topics     the part of ControllerAdminService that is about topics
cluster    the rest of it, and the service as a whole
"""
