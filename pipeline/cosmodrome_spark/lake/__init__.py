"""Tables in a lake, behind one protocol: tasks write files, the driver commits them."""
