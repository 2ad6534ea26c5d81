"""The APIs that clients speak, one package each: their bodies, and how their answers are written.

A body becomes a `ChatRequest` (`server/protocol.py`, with OpenAI's other older body); a `Writer`
(`server/writer.py`) makes the answer. The files beside this are what the Responses and Messages
APIs have in common. Only routes know a dialect: service, session and bridge serve them all alike.
"""
