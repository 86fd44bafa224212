"""The mark that dataflux leaves in the requests of a client."""

from __future__ import annotations

from typing import Any

user_agent_string = "dataflux/1.0"


def add_dataflux_user_agent(storage_client: Any) -> None:
    """Puts user_agent_string in front of the client's user agent, once."""
    connection = storage_client._connection
    if not connection:
        return
    if not connection._client_info:
        from google.api_core import client_info

        made: Any = client_info.ClientInfo
        connection._client_info = made(user_agent=user_agent_string)
        return
    agent = connection._client_info.user_agent or ""
    if user_agent_string not in agent:
        connection._client_info.user_agent = f"{user_agent_string} {agent}".strip()
