"""A seeded world for the production code: time, disk, stores, threads and faults that replay exactly (TESTING 2).

Everything outside a node is a twin made here; everything inside it is the code that ships. One seed is one history,
byte for byte; `checker` holds the promises over that history and knows nothing of the workload that made it.
"""
