"""Ends with status 0 if a service takes requests, for whom gRPC health cannot be asked by itself.

Kubernetes asks by itself; Compose and Docker run this:
`python healthcheck.py 127.0.0.1:50061 paceline.v1.TargetService`. It knows no TLS: where there is
TLS, give the `--health-port`.
"""

import sys

from paceline.cli.readiness import GrpcProbe

address, service_name = sys.argv[1:]
sys.exit(0 if GrpcProbe(address, service_name)() else 1)
