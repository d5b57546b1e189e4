"""Commands of the laboratory. They only translate between the command line and `toolscout_lab`."""
