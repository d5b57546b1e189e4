"""The journal of searches, calls and feedback, and the evidence that it holds about which tools requests need."""
