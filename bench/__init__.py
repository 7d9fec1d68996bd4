"""Domicile's benchmarks: one node, and the cluster, each beside other products in one run."""
