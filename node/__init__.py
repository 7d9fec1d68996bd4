"""The data node: HTTP, residency, mailbox, transaction, flights, takeover, the blob store. `call.py` is the path."""
