"""The HTTP interface: routes, schemas, problem responses and the pool of planning processes.

Planning processes import modules of this package, so nothing is imported here.
"""
