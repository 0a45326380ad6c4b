"""Agents: one on each host starts the tasks there, for a launcher that is elsewhere."""

from dtrain.launchers.agents.launcher import Agents
from dtrain.launchers.agents.stream import Command, Transport

__all__ = ["Agents", "Command", "Transport"]
