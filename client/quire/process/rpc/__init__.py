"""What stands before every gRPC method of a server, whatever it serves.

context       who asks, for whom, by when
permissions   what each method demands, from the contract itself
gate          the one interceptor: permission, context, limits, and errors as the contract has them
server        a grpc.aio server with the limits that all have
"""
