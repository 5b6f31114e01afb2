"""The shop, started so that it is to go on when its terminal hangs up."""

import signal

from tests.cli.apps.shop import mp as mp

signal.signal(signal.SIGHUP, signal.SIG_IGN)
