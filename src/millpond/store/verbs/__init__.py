"""What each verb decides, over tables: the same on every store."""
