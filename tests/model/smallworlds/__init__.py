"""Small worlds searched to the end: why the rules of PROTOCOLS sections 3, 5, 7 and 10 are what they are.

Each world is a model of one part of the protocol: states, the steps between them, and what may never be. Where the
product has a pure function for a rule, the model calls it. A rule can be dropped by name; then the search must find the
answered write that is lost without it.
"""
