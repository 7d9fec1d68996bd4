"""Several real nodes over a real etcd, wires between them that can be cut, and clients that roam."""
