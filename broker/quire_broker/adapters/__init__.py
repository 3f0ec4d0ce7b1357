"""What joins the broker to the world beside the disk and the peer link.

controllers   calls one controller, over gRPC
"""
