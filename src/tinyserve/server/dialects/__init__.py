"""The APIs that clients speak, one package each: their bodies, and how their answers are written.

A body becomes a `ChatRequest` (`server/protocol.py`); a `Writer` (`server/writer.py`) makes the
answer. The files beside this are what the Responses and Messages APIs have in common.
"""
