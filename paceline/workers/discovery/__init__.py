"""Where workers are found: fixed addresses, DNS names, Services of Kubernetes.

`sources.py` puts together what all sources of one role see; the pool makes a worker of each
endpoint. Knows no gRPC, no request, and not what a worker is: that says the worker (`GetInfo`).
`kubernetes` is imported in here only, and only when a source asks for it.
"""
