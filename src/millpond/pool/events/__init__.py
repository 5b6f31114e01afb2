"""Events and triggers: an event is emitted, and each trigger submits one task for it."""
