"""Who owns what, where: the placement store, leases, gates, nodes, alarms and the directory."""
