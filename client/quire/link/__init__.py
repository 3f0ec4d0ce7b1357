"""The peer link: how nodes of a cluster stream frames to each other.

It lives in the client package, as protocol and codec do (and as Kafka's brokers find theirs in its `clients` module),
so that the broker and the controller share one without importing each other. Clients do not use it.

    frames, handshake, liveness, backoff    pure: bytes in, decisions out
    session                                 one connection: greeting, frames both ways, flow control, keepalive
    listener, dialer                        who makes sessions, and keeps their number bounded
    network                                 what these stand on, a port: `tcp` for real (with `tls`), `sim` for tests
    inbox                                   a bounded queue of frames, for receivers that await
    certs, cli                              the node CA; need `quire[server]`
"""
