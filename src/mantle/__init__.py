"""Mantle: a multi-tenant LLM inference platform that treats inference as scheduling."""

__version__ = "0.1.0"
