"""The pure core: it decides, it never touches a clock, a socket, a thread or a die."""
