"""Domicile's benchmarks: one node beside a hand-written service and beside workerd, all in one run."""
