"""The command `millpond`: one file per sub-command, imported when it is asked for."""
