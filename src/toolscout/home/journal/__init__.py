"""The journal of searches, calls and feedback, and the evidence in it of the tools that requests need."""
